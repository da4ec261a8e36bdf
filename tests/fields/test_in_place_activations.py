"""Activations that overwrite what they get, between the layers of a field."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.fields.activations import derivative_of


def layer(activation: nn.Module, solver: object) -> nn.Module:
    torch.manual_seed(1)
    field = rs.Autonomous(nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 4)))
    return rs.ThetaBlock(field, 1.0, 2, 0.5, solver=solver)


@pytest.mark.parametrize("solver", [None, rs.Newton(), rs.solvers.Chord()])
@pytest.mark.parametrize("make", [nn.SiLU, nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Hardswish])
def test_values_and_gradients_are_those_of_the_activation_that_copies(
    make: Callable[..., nn.Module], solver: object
) -> None:
    x = torch.randn(6, 4)

    def outcome(inplace: bool) -> list[Tensor]:
        block, start = layer(make(inplace=inplace), solver), x.clone().requires_grad_()
        value = block(start)
        return [value.detach(), *torch.autograd.grad(value.square().sum(), [start, *block.parameters()])]

    for one, other in zip(outcome(True), outcome(False), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_a_derivative_that_needs_what_is_overwritten_is_not_known() -> None:
    assert derivative_of(nn.SiLU()) is not None
    assert derivative_of(nn.SiLU(inplace=True)) is None
    assert derivative_of(nn.ReLU(inplace=True)) is not None
