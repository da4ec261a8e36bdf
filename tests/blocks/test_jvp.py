"""Tangents through blocks and networks, and their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import resolvent as rs
from seeding import shifted

TIGHT = rs.Stopping(rtol=1e-12, atol=1e-12)
THETAS = [0.0, 0.3, 0.5, 1.0]


class Swirl(rs.fields.Field):
    """A field that is nonlinear in the state and in time."""

    rowwise = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.5 * torch.randn(3, 3, generator=torch.Generator().manual_seed(shifted(0))))

    def forward(self, t: Any, y: Tensor) -> Tensor:
        return torch.tanh(y @ self.weight.mT + torch.as_tensor(t).reshape(-1, 1))


def block(theta: float, field: rs.fields.Field | None = None, **options: Any) -> rs.ThetaBlock:
    return rs.ThetaBlock(Swirl() if field is None else field, theta, 3, 1.5, stopping=TIGHT, **options)


def state(seed: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(shifted(seed)))


@pytest.mark.parametrize("theta", THETAS)
def test_through_a_linear_field_tangents_move_like_states(theta: float) -> None:
    layer = nn.Linear(3, 3, bias=False)
    result = rs.jvp(block(theta, rs.Autonomous(layer, rowwise=True)), state(0), state(1))
    A, one = 0.5 * layer.weight.detach(), torch.eye(3)
    step = torch.linalg.solve(one - theta * A, one + (1 - theta) * A)
    matrix = torch.linalg.matrix_power(step, 3)
    torch.testing.assert_close(result.outputs, state(0) @ matrix.mT, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result.tangents, state(1) @ matrix.mT, rtol=1e-9, atol=1e-9)
    assert len(result.solves) == (0 if theta == 0 else 3)


@pytest.mark.parametrize("mode", [pytest.param("sequential", marks=pytest.mark.slow), "auto"])
@pytest.mark.parametrize("theta", THETAS)
def test_tangents_and_their_gradients_are_exact(theta: float, mode: str) -> None:
    own = block(theta, mode=mode)
    weights = list(own.parameters())

    def tangents(x: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return rs.jvp(own, x, v)[:2]

    x, v = state(0).requires_grad_(), state(1).requires_grad_()
    assert gradcheck(tangents, (x, v, *weights))
    expected = torch.func.jvp(block(theta, mode="sequential", adjoint=rs.ImplicitAdjoint(order=2)), (x,), (v,))[1]
    torch.testing.assert_close(tangents(x, v)[1], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_tangents_have_gradients_by_theta_and_the_horizon_whatever_is_remembered(memory: str) -> None:
    horizon = nn.Parameter(torch.tensor(1.2))
    own = rs.ThetaBlock(Swirl(), 0.6, 2, horizon, stopping=TIGHT, learn_theta=True, memory=memory)
    x = state(0).requires_grad_()
    assert gradcheck(lambda *_: rs.jvp(own, x, state(1)).tangents, (x, own.raw_theta, horizon))


def test_the_linear_part_of_a_field_is_one_of_its_derivative() -> None:
    """A stiff shift, with which the fixed point converges only if the solves for tangents know of it, too."""
    field = rs.fields.Bounded(rs.fields.MLP(3, 4, 1, bound=1.0), -200.0, -199.0)
    own = block(1.0, field, solver=rs.Picard(), mode="sequential")
    x, v, step = state(0), state(1), 1e-6
    difference = (own(x + step * v) - own(x - step * v)) / (2 * step)
    torch.testing.assert_close(rs.jvp(own, x, v).tangents, difference, rtol=1e-6, atol=1e-8)


def test_normalised_weights_are_computed_once() -> None:
    """In training each computation moves the norms on, and the tangents would be those of another network."""
    own = block(0.5, rs.fields.Bounded(rs.fields.MLP(3, 4, 1, bound=1.0), -2.0, 0.5), mode="sequential").train()
    computed = []
    for module in own.modules():
        if "spectral" in type(module).__module__:
            module.register_forward_hook(lambda *_: computed.append(1))
    own(state(0))
    once = len(computed)
    assert once > 0
    rs.jvp(own, state(0), state(1))
    assert len(computed) == 2 * once


def test_pieces_act_on_tangents_in_their_turn() -> None:
    own = block(0.5, rs.fields.Piecewise([Swirl(), rs.Autonomous(nn.Linear(3, 3), rowwise=True), Swirl()], 1.5))
    x, v, step = state(0), state(1), 1e-6
    difference = (own(x + step * v) - own(x - step * v)) / (2 * step)
    torch.testing.assert_close(rs.jvp(own, x, v).tangents, difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_a_field_that_does_not_depend_on_the_state_leaves_tangents_alone(theta: float) -> None:
    class Wind(rs.fields.Field):
        rowwise = True

        def forward(self, t: Any, y: Tensor) -> Tensor:
            return torch.ones_like(y)

    assert torch.equal(rs.jvp(block(theta, Wind()), state(0), state(1)).tangents, state(1))


def network(**options: Any) -> nn.Sequential:
    torch.manual_seed(shifted(0))
    return nn.Sequential(nn.Linear(5, 3), block(0.5, **options), nn.Sequential(nn.Tanh(), block(1.0, **options)))


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
def test_a_network_is_followed_module_by_module(form: str) -> None:
    adjoint = rs.ImplicitAdjoint(order=1 if form == "midpoint" else 2)
    x, v = torch.randn(4, 5), torch.randn(4, 5)
    model, reference = network(form=form, adjoint=adjoint), network(form=form, adjoint=rs.ImplicitAdjoint(order=2))
    result = rs.jvp(model, x, v)
    expected = torch.func.jvp(reference, (x,), (v,))[1]
    torch.testing.assert_close(result.outputs, model(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result.tangents, expected, rtol=1e-9, atol=1e-9)
    assert len(result.trajectories) == (2 if form == "midpoint" else 0)
    result.tangents.square().sum().backward()
    expected.square().sum().backward()
    for own, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-7, atol=1e-8)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@pytest.mark.parametrize("kind", ["block", "branch"])
def test_converted_networks_have_exact_gradients_of_tangents_with_the_default_adjoint(kind: str) -> None:
    torch.manual_seed(shifted(0))
    chosen = Residual if kind == "block" else nn.Sequential
    model = nn.Sequential(nn.Linear(3, 3), Residual())
    x, v = torch.randn(4, 3), torch.randn(4, 3)

    def gradients(adjoint: Any, tangents: Any) -> list[Tensor]:
        converted = rs.make_implicit(
            model,
            predicate=lambda name, module: name != "" and isinstance(module, chosen),
            kind=kind,
            adjoint=adjoint,
            stopping=rs.Stopping(rtol=1e-12),
        )
        outputs = tangents(converted[1] if kind == "block" else converted[1].branch, x)
        return list(torch.autograd.grad(outputs.square().sum(), list(converted[1].parameters())))

    exact = gradients(rs.ImplicitAdjoint(order=2), lambda module, x: torch.func.jvp(module, (x,), (v,))[1])
    found = gradients(rs.ImplicitAdjoint(), lambda module, x: rs.jvp(module, x, v).tangents)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_what_cannot_be_differentiated_again_says_so() -> None:
    result = rs.jvp(block(0.5, form="trapezoid"), state(0), state(1))
    with pytest.raises(rs.errors.DerivativeOrderError):
        result.tangents.sum().backward()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_a_graph(context: Any) -> None:
    own = block(0.5)
    with context():
        result = rs.jvp(own, state(0), state(1))
    assert not result.tangents.requires_grad
    torch.testing.assert_close(result.tangents, rs.jvp(own, state(0), state(1)).tangents)


def test_solves_that_fail_are_reported() -> None:
    own = block(1.0, solver=rs.Picard(), on_failure="ignore", mode="sequential")
    with torch.no_grad():
        own.field.weight.mul_(40)
    result = rs.jvp(own, 1e-3 * state(0), state(1))
    assert not all(bool(solve.converged.all()) for solve in result.solves)


def test_a_direction_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the shape \(4, 3\) of the inputs, got \(4, 2\)"):
        rs.jvp(block(0.5), state(0), torch.ones(4, 2))
