"""Derivatives of penalties: to parameters, and through states where asked."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

from regularizers.trajectories import FIELDS, SHARP, Rotation, follow
from resolvent.blocks import ThetaBlock, Trajectory
from resolvent.fields import MLP, Piecewise
from resolvent.regularizers import DiagonalPenalty, KineticEnergy, TotalDerivative, TrajectoryPenalty
from seeding import shifted

Penalty = Callable[[nn.Module, Trajectory], Tensor]


def total(**options: float) -> Callable[..., Penalty]:
    def make(**more: object) -> Penalty:
        def penalty(field: nn.Module, trajectory: Trajectory) -> Tensor:
            generator = torch.Generator().manual_seed(shifted(0))
            return TrajectoryPenalty(**options, generator=generator, **more)(field, trajectory).total

        return penalty

    return make


def diagonal(**more: object) -> Penalty:
    def measure(t: Tensor, y: Tensor, D: Tensor) -> Tensor:
        return y * D + D.square()

    return lambda field, trajectory: DiagonalPenalty(
        1.0, measure, probes=2, generator=torch.Generator().manual_seed(shifted(0)), **more
    )(field, trajectory)


PENALTIES: dict[str, Callable[..., Penalty]] = {
    "estimated": total(divergence=0.5, jacobian=2.0),
    "exact": total(divergence=0.5, jacobian=2.0, exact=True),
    "saturated": total(divergence=0.5, saturate=True),
    "kinetic": lambda **more: KineticEnergy(1.0, **more),
    "second derivative": lambda **more: TotalDerivative(1.0, 2, **more),
    "third derivative": lambda **more: TotalDerivative(1.0, 3, **more),
    "diagonal": diagonal,
}


class Call(nn.Module):
    """A function of parameters, as functional_call wants it."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, function: Callable[[nn.Module], Tensor]) -> Tensor:
        return function(self.field)


def of_parameters(field: nn.Module, function: Callable[[nn.Module], Tensor]) -> bool:
    call = Call(field)
    names = [name for name, _ in call.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for p in call.parameters())
    return gradcheck(lambda *p: functional_call(call, dict(zip(names, p, strict=True)), (function,)), values)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("field", ["gradient flow", "dependent on time", "opaque"])
def test_derivatives_to_parameters_with_the_states_constant(field, name):
    make, shape = FIELDS[field]
    F = make()
    trajectory = follow(F, shape)
    assert of_parameters(F, lambda F: PENALTIES[name]()(F, trajectory))


def test_derivatives_of_all_terms_for_piecewise_weights():
    field = Piecewise([MLP(2, 2, 0, nn.Tanh()), MLP(2, 2, 0, nn.Tanh())], 2.0)
    trajectory = ThetaBlock(field, 0.5, 2, 2.0).trajectory(torch.randn(2, 2))
    penalty = total(divergence=0.5, jacobian=2.0, variation=0.3)()
    assert of_parameters(field, lambda F: penalty(F, trajectory))


@pytest.mark.parametrize("fraction", [None, 0.5])
@pytest.mark.parametrize("name", PENALTIES)
def test_derivatives_through_the_states_are_those_of_the_whole_pass(name, fraction):
    field = Rotation()
    penalty = PENALTIES[name](detach=False, fraction=fraction)
    x = torch.randn(2, 3)

    def whole(F: nn.Module, x: Tensor = x) -> Tensor:
        return penalty(F, ThetaBlock(F, 0.5, 2, 1.0, stopping=SHARP).trajectory(x))

    assert of_parameters(field, whole)
    assert gradcheck(lambda x: whole(field, x), x.clone().requires_grad_())


@pytest.mark.parametrize("name", PENALTIES)
def test_gradients_stop_at_the_states_by_default(name):
    field, x = Rotation(), torch.randn(2, 3, requires_grad=True)
    trajectory = ThetaBlock(field, 0.5, 2, 1.0).trajectory(x)
    constant = Trajectory(trajectory.times, trajectory.states.detach(), ())
    value = PENALTIES[name]()(field, trajectory)
    (to_weight,) = torch.autograd.grad(value, field.weight, retain_graph=True)
    (expected,) = torch.autograd.grad(PENALTIES[name]()(field, constant), field.weight)
    assert torch.equal(to_weight, expected)
    assert torch.autograd.grad(value, x, allow_unused=True) == (None,)
    (through,) = torch.autograd.grad(PENALTIES[name](detach=False)(field, trajectory), field.weight)
    assert (through - expected).norm() > 1e-3 * expected.norm()


def test_a_learned_horizon_is_reached_through_the_trajectory_alone():
    field, horizon = Rotation(), nn.Parameter(torch.tensor(1.0))
    trajectory = ThetaBlock(field, 0.5, 2, horizon).trajectory(torch.randn(2, 3))
    KineticEnergy()(field, trajectory).backward()
    assert horizon.grad is None
    KineticEnergy(detach=False)(field, trajectory).backward()
    assert horizon.grad.abs() > 0
