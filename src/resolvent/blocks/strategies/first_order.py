"""Derivatives of compiled layers are first ones."""

from typing import Any

import torch
from torch import Tensor

from resolvent.errors import DerivativeOrderError
from resolvent.schemes.scheme import Carry, Step


def first_order(step: Step) -> Step:
    """The step with first derivatives alone."""
    return Step(Carry((FirstOrder.apply(step.state),)), step.solutions)


def refuse_second() -> None:
    """Raises in a backward pass that is recorded."""
    if torch.is_grad_enabled():
        raise DerivativeOrderError(
            'mode="compiled" has first derivatives only, but a graph of them was requested (create_graph=True): '
            'take mode="parallel" with adjoint=rs.ImplicitAdjoint(order=2).'
        )


class FirstOrder(torch.autograd.Function):
    """Returns the states unchanged. On create_graph=True it raises with a clearer message than torch's compiler."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        refuse_second()
        return cotangents[0]
