"""torch.func with weights that are not the module's own: the derivatives are those at the weights that were given."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap

import resolvent as rs

TIGHT = rs.Stopping(rtol=1e-13, atol=1e-14)
# What is compared are two solutions, each with an error of about the tolerance times a condition number.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
TAU = 0.4
Weights = dict[str, Tensor]


class Map(nn.Module):
    """F itself is a module."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.F = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return rs.resolve(self.F, x, TAU, stopping=TIGHT, **self.options).value


class Closure(nn.Module):
    """F closes over the module that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        def F(w: Tensor) -> Tensor:
            return torch.tanh(w @ self.weight + self.bias)

        return rs.resolve(F, x, TAU, stopping=TIGHT, **self.options).value


class Conditioned(nn.Module):
    """F takes conditions, which depend on weights as well."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        F = rs.Rowwise(lambda w, c: torch.tanh(self.inner(w) + c), self.outer(x))
        return rs.resolve(F, x, TAU, stopping=TIGHT, **self.options).value


def layers(field: nn.Module, **options: Any) -> nn.Module:
    return rs.ThetaBlock(field, 0.5, 3, 1.0, stopping=TIGHT, **options)


def autonomous(**options: Any) -> nn.Module:
    return layers(rs.Autonomous(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)), rowwise=True), **options)


def mlp(**options: Any) -> nn.Module:
    return layers(rs.fields.MLP(3, 5, 1, nn.Tanh()), **options)


def bounded(**options: Any) -> nn.Module:
    return layers(rs.fields.Bounded(rs.fields.MLP(3, 5, 1, nn.Tanh(), bound=1.0), -3.0, 0.5), **options)


RESOLVES = [Map, Closure, Conditioned]
BLOCKS = [autonomous, mlp, bounded]
SOLVERS = [
    {"solver": solver, "adjoint": rs.ImplicitAdjoint(linear)}
    for solver, linear in (
        (rs.Newton(), rs.DenseLU()),
        (rs.Newton(), rs.GMRES()),
        (rs.Anderson(), rs.GMRES()),
        (rs.Picard(), rs.DenseLU()),
    )
]
CASES = [
    *((make, options) for make in RESOLVES for options in ({}, *SOLVERS)),
    *((make, {"mode": mode}) for make in BLOCKS for mode in ("auto", "sequential", "parallel")),
    *((make, options) for make in (mlp, bounded) for options in SOLVERS[1:3]),
    *((make, {"adjoint": rs.ImplicitAdjoint(order=2)}) for make in (*RESOLVES, *BLOCKS)),
]


def name(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value.__name__)
    return "-".join(part for part in map(str, value.values())) or "default"


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3), torch.randn(4, 3)


def others(model: nn.Module) -> Weights:
    """Weights that are not those of the module."""
    return {key: (value + 0.1 * torch.randn_like(value)).detach() for key, value in model.named_parameters()}


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Weights], Tensor]:
    return lambda weights: (functional_call(model, weights, (x,)) - y).square().mean()


def ordinary(model: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> Weights:
    """The gradients by autograd, with the weights in a module of their own."""
    model = copy.deepcopy(model)
    model.load_state_dict(weights, strict=False)
    loss = (model(x) - y).square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip(weights, found, strict=True))


def made(make: Callable[..., nn.Module], **options: Any) -> nn.Module:
    """In evaluation mode, where normalised weights are functions of the weights alone."""
    return make(**options).eval()


def assert_same(got: Any, expected: Weights) -> None:
    assert set(got) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, **CLOSE)


@pytest.mark.parametrize(("make", "options"), CASES, ids=name)
def test_grad_is_that_at_the_weights_that_were_given(make: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    model, (x, y) = made(make, **options), data()
    weights = others(model)
    expected = ordinary(model, weights, x, y)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert_same(grad(loss_of(model, x, y))(weights), expected)
    for key, value in model.state_dict().items():
        if key in before and "parametrizations" not in key:
            assert torch.equal(value, before[key])
    # The gradients at the weights of the module are others.
    own = grad(loss_of(model, x, y))(dict(model.named_parameters()))
    assert any((own[key] - value).abs().max() > 1e-4 for key, value in expected.items())


@pytest.mark.parametrize("make", [*RESOLVES, *BLOCKS], ids=name)
def test_gradients_of_single_samples(make: Callable[..., nn.Module]) -> None:
    model, (x, y) = made(make), data()
    weights = others(model)

    def of_one(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model, x[None], y[None])(weights)

    together = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, x, y)
    for n in range(len(x)):
        alone = slice(n, n + 1)
        assert_same({key: value[n] for key, value in together.items()}, ordinary(model, weights, x[alone], y[alone]))


@pytest.mark.parametrize("make", [*RESOLVES, *BLOCKS], ids=name)
def test_ensembles(make: Callable[..., nn.Module]) -> None:
    models, (x, y) = [made(make) for _ in range(3)], data()
    weights, buffers = stack_module_state(models)
    base = models[0]

    def loss(weights: Weights, buffers: Weights) -> Tensor:
        return (functional_call(base, (weights, buffers), (x,)) - y).square().mean()

    values, gradients = vmap(loss)(weights, buffers), vmap(grad(loss))(weights, buffers)
    for n, model in enumerate(models):
        expected = (model(x) - y).square().mean()
        torch.testing.assert_close(values[n], expected, **CLOSE)
        own = torch.autograd.grad(expected, list(model.parameters()))
        assert_same({key: value[n] for key, value in gradients.items()}, dict(zip(weights, own, strict=True)))


@pytest.mark.parametrize("make", [*RESOLVES, *BLOCKS], ids=name)
def test_directional_derivatives_and_jacobians(make: Callable[..., nn.Module]) -> None:
    model, (x, y) = made(make), data()
    weights = others(model)
    direction = {key: torch.randn_like(value) for key, value in weights.items()}
    expected = ordinary(model, weights, x, y)
    slope = sum((expected[key] * direction[key]).sum() for key in weights)
    _, tangent = jvp(loss_of(model, x, y), (weights,), (direction,))
    torch.testing.assert_close(tangent, slope, **CLOSE)
    assert_same(jacrev(loss_of(model, x, y))(weights), expected)


@pytest.mark.parametrize("make", [Closure, mlp], ids=name)
def test_second_derivatives(make: Callable[..., nn.Module]) -> None:
    model, (x, y) = made(make, adjoint=rs.ImplicitAdjoint(order=2)), data()
    weights = others(model)
    direction = {key: torch.randn_like(value) for key, value in weights.items()}
    loss = loss_of(model, x, y)
    product = jvp(grad(loss), (weights,), (direction,))[1]
    eps = 1e-4

    def moved(step: float) -> Weights:
        return grad(loss)({key: value + step * direction[key] for key, value in weights.items()})

    ahead, behind = moved(eps), moved(-eps)
    for key, value in product.items():
        torch.testing.assert_close(value, (ahead[key] - behind[key]) / (2 * eps), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("make", [Map, Conditioned, autonomous, bounded], ids=name)
def test_a_functional_training_loop_is_the_ordinary_one(
    make: Callable[..., nn.Module], optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    model, (x, y) = made(make), data()
    base = copy.deepcopy(model)
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    ordinary_steps, functional_steps = optimizer(model.parameters(), lr=0.05), optimizer(weights.values(), lr=0.05)
    for _ in range(5):
        ordinary_steps.zero_grad()
        (model(x) - y).square().mean().backward()
        gradients = grad(loss_of(base, x, y))(weights)
        for key, value in weights.items():
            value.grad = gradients[key]
        ordinary_steps.step()
        functional_steps.step()
    for key, value in model.named_parameters():
        torch.testing.assert_close(weights[key], value.detach(), rtol=1e-10, atol=1e-10)


def test_weights_that_were_taken_away_raise() -> None:
    x = torch.randn(4, 3)
    held = {"weight": 0.3 * torch.randn(3, 3)}

    def solved(weight: Tensor) -> Tensor:
        held["weight"] = weight
        value = rs.resolve(lambda w: torch.tanh(w @ held["weight"]), x, TAU).value
        held["weight"] = torch.zeros(3, 3)
        return value.square().sum()

    with pytest.raises(rs.errors.ResolventError, match="gone when it was differentiated"):
        grad(solved)(held["weight"])
