"""Derivatives of whole blocks, against finite differences: first and second, in everything that can be varied."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import resolvent as rs
from resolvent import fields, schemes
from resolvent.blocks import Block, ThetaBlock
from resolvent.schemes import tableaux
from schemes.catalogue import column

SHARP = rs.Stopping(rtol=1e-13, atol=1e-14)
TWICE = rs.ImplicitAdjoint(order=2)


class Driven(nn.Module):
    """A small field that depends on time smoothly."""

    rowwise = True

    def __init__(self, dim: int = 2) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, 2), nn.Linear(2, dim)

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        t = column(t, y)
        return self.outer(torch.tanh(self.inner(y) + torch.sin(2 * t))) - y * torch.cos(t)

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y[:, :1], y[:, 1:]

    def join(self, q: Tensor, p: Tensor) -> Tensor:
        return torch.cat((q, p), dim=1)

    def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
        return self(t, torch.cat((torch.zeros_like(p), p), dim=1))[:, :1]

    def force(self, t: float | Tensor, q: Tensor) -> Tensor:
        return self(t, torch.cat((q, torch.zeros_like(q)), dim=1))[:, 1:]


def as_function(scheme: str | rs.schemes.Scheme, field: Driven, **options: object):
    """A block as a function of input, theta, horizon, start and all weights."""
    names = [name for name, _ in field.named_parameters()]

    def function(x: Tensor, theta: Tensor, horizon: Tensor, t0: Tensor, *weights: Tensor) -> Tensor:
        def F(t: float | Tensor, y: Tensor) -> Tensor:
            return torch.func.functional_call(field, dict(zip(names, weights, strict=True)), (t, y))

        if isinstance(scheme, str):
            block = ThetaBlock(F, theta, 2, horizon, scheme, stopping=SHARP, **options)
        else:
            # A multistep scheme has to get past its start.
            num_steps = 3 if isinstance(scheme, schemes.Multistep) else 2
            block = Block(F, scheme, num_steps, horizon, stopping=SHARP, **options)
        return block(x, t0)

    return function


def arguments(field: Driven, per_sample: bool) -> list[Tensor]:
    t0 = torch.tensor([0.1, 0.7]) if per_sample else torch.tensor(0.3)
    inputs = [torch.randn(2, 2), torch.tensor(0.4), torch.tensor(0.9), t0, *field.parameters()]
    return [tensor.detach().clone().requires_grad_() for tensor in inputs]


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("per_sample", [pytest.param(False, marks=pytest.mark.slow), True])
def test_first_and_second_derivatives_of_theta_blocks(form: str, per_sample: bool) -> None:
    field = Driven()
    function = as_function(form, field, adjoint=TWICE)
    inputs = arguments(field, per_sample)
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs, atol=1e-4)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0])
def test_jacobians_of_the_paper(form: str, theta: float) -> None:
    """dy/dx = (I - Phi_y)^{-1} (I + Phi_x), dy/dgamma = (I - Phi_y)^{-1} Phi_gamma, with the entries of its table."""
    field, x, h, one = Driven(), torch.randn(2), 0.7, torch.eye(2)
    weights = {name: parameter.detach() for name, parameter in field.named_parameters()}
    block = ThetaBlock(field, theta, 1, h, form, stopping=SHARP)

    def F(t: float, y: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(field, weights, (t, y[None]))[0]

    def layer(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(block, {f"field.{k}": w for k, w in weights.items()}, (x[None],))[0]

    def slopes(t: float, y: Tensor) -> tuple[Tensor, Tensor]:
        by_weight = torch.func.jacrev(F, 2)(t, y, weights)["inner.weight"].flatten(1)
        return torch.func.jacrev(F, 1)(t, y, weights), by_weight

    y = layer(x, weights)
    if form == "midpoint":
        by_state, by_weight = slopes(theta * h, (1 - theta) * x + theta * y)
        phi_x, phi_y, phi_gamma = (1 - theta) * h * by_state, theta * h * by_state, h * by_weight
    else:
        (at_x, weight_x), (at_y, weight_y) = slopes(0.0, x), slopes(h, y)
        phi_x, phi_y = (1 - theta) * h * at_x, theta * h * at_y
        phi_gamma = h * ((1 - theta) * weight_x + theta * weight_y)
    by_x, by_weights = torch.func.jacrev(layer, (0, 1))(x, weights)
    torch.testing.assert_close(by_x, torch.linalg.solve(one - phi_y, one + phi_x), atol=1e-10, rtol=0)
    by_gamma = by_weights["inner.weight"].flatten(1)
    torch.testing.assert_close(by_gamma, torch.linalg.solve(one - phi_y, phi_gamma), atol=1e-10, rtol=0)


SCHEMES = {
    "theta = 0": schemes.Theta(0.0),
    "theta = 1": schemes.Theta(1.0),
    "RK4": schemes.RungeKutta(tableaux.RK4),
    "TRBDF2": schemes.RungeKutta(tableaux.TRBDF2),
    "SDIRK3": schemes.RungeKutta(tableaux.SDIRK3),
    "GAUSS4": schemes.RungeKutta(tableaux.GAUSS4),
    "RADAU5": schemes.RungeKutta(tableaux.RADAU5),
    "LOBATTO_IIIB": schemes.RungeKutta(tableaux.LOBATTO_IIIB),
    "BDF2": schemes.BDF2,
    "BDF3": schemes.BDF3,
    "ADAMS_MOULTON3": schemes.ADAMS_MOULTON3,
}


@pytest.mark.parametrize("name", SCHEMES)
def test_first_derivatives_of_every_kind_of_scheme(name: str) -> None:
    field = Driven()
    function = as_function(SCHEMES[name], field)
    x, theta, *rest = arguments(field, per_sample=True)
    assert gradcheck(lambda x, *rest: function(x, theta, *rest), [x, *rest])


@pytest.mark.parametrize("name", ["theta = 0", "RK4", "TRBDF2", "GAUSS4", "BDF2"])
def test_second_derivatives_of_every_kind_of_scheme(name: str) -> None:
    field = Driven()
    function = as_function(SCHEMES[name], field, adjoint=TWICE)
    x, theta, *rest = arguments(field, per_sample=False)
    assert gradgradcheck(lambda x, *rest: function(x, theta, *rest), [x, *rest], atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("scheme", [schemes.VERLET, schemes.LEAPFROG, schemes.REVNET])
def test_derivatives_of_partitioned_schemes(scheme: rs.schemes.Scheme) -> None:
    field = Driven()
    block = Block(field, scheme, 3, nn.Parameter(torch.tensor(0.8)))
    x, t0 = torch.randn(2, 2, requires_grad=True), torch.tensor([0.1, 0.7], requires_grad=True)
    weights = [block.horizon, *field.parameters()]
    assert gradcheck(lambda x, t0, *_: block(x, t0), [x, t0, *weights])
    assert gradgradcheck(lambda x, t0, *_: block(x, t0), [x, t0, *weights], atol=1e-4)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_learned_theta_and_horizon(form: str, memory: str) -> None:
    """The parameters that a block may own: gradients by finite differences, through every memory policy."""
    field = Driven()
    horizon = nn.Parameter(torch.tensor(0.9))
    block = ThetaBlock(field, 0.4, 2, horizon, form, stopping=SHARP, memory=memory, learn_theta=True)
    assert {"raw_theta", "horizon"} <= dict(block.named_parameters()).keys()
    x, t0 = torch.randn(2, 2, requires_grad=True), torch.tensor([0.1, 0.7], requires_grad=True)
    assert gradcheck(lambda x, t0, *_: block(x, t0), [x, t0, *block.parameters()], atol=1e-6)


def test_learned_theta_stays_in_range() -> None:
    block = ThetaBlock(Driven(), 0.5, 2, learn_theta=True)
    optimiser = torch.optim.SGD([block.raw_theta], lr=50.0)
    x = torch.randn(4, 2)
    for _ in range(5):
        optimiser.zero_grad()
        block(x).pow(2).sum().backward()
        optimiser.step()
        assert 0 < block.theta < 1
    for raw, end in ((-1e4, 0.001), (1e4, 0.999)):
        with torch.no_grad():
            block.raw_theta.fill_(raw)
        assert block.theta.item() == pytest.approx(end)
        assert block(x).isfinite().all()


def test_trajectory_is_differentiable_in_all_states_and_times() -> None:
    field = Driven()
    horizon = nn.Parameter(torch.tensor(0.9))
    block = ThetaBlock(field, 0.5, 3, horizon, stopping=SHARP)
    x, t0 = torch.randn(2, 2, requires_grad=True), torch.tensor([0.1, 0.7], requires_grad=True)

    def function(x: Tensor, t0: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        trajectory = block.trajectory(x, t0)
        return trajectory.states, trajectory.times

    assert gradcheck(function, [x, t0, horizon, *field.parameters()])


def test_interpolation_is_differentiable() -> None:
    block = ThetaBlock(Driven(), 0.5, 3, 0.9, stopping=SHARP)
    x, times = torch.randn(2, 2, requires_grad=True), torch.tensor([0.11, 0.5], requires_grad=True)
    assert gradcheck(lambda x, times: block.interpolate(x, times), [x, times])


def test_second_derivative_beyond_what_was_prepared_raises() -> None:
    block = ThetaBlock(Driven(), 0.5, 2)
    x = torch.randn(2, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(block(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(rs.errors.DerivativeOrderError):
        gradient.sum().backward()


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_torch_func(theta: float) -> None:
    """vmap over an ensemble of inputs, jacrev and grad of a functional call, against plain autograd."""
    field = fields.MLP(2, 4, 1)
    block = ThetaBlock(field, theta, 3, 0.6, stopping=SHARP)
    x = torch.randn(3, 2)
    parameters = dict(block.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(block, parameters, (x,)).pow(2).sum()

    expected = torch.autograd.grad(block(x).pow(2).sum(), parameters.values())
    for got, want in zip(torch.func.grad(loss)(parameters, x).values(), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-10, rtol=0)
    jacobian = torch.func.jacrev(block)(x)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(block, x), atol=1e-10, rtol=0)
    ensemble = torch.randn(4, 3, 2)
    torch.testing.assert_close(torch.func.vmap(block)(ensemble), torch.stack([block(x) for x in ensemble]))
