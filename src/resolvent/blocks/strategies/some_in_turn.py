"""Samples of a group that did not converge: they are solved layer by layer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.equation.solution import Solution, joined
from resolvent.schemes.scheme import Carry, Step

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass


def in_turn_from(pass_: "Pass", numbers: range, x: Tensor, stages: Tensor) -> Iterator[Step]:
    """The layers one after the other. Their solves start at the `stages` of the group, (batch, layers, *shape), which
    are as a rule almost solutions."""
    theta, carry = pass_.scheme.chord, Carry((x,))
    assert theta is not None
    for n, stage in zip(numbers, stages.unbind(1), strict=True):
        start = carry.states[0].detach()
        step = pass_.repeat(n, carry, torch.lerp(start, stage, 1 / theta))
        yield step
        carry = step.carry


def mixed_steps(
    solution: Solution, states: Tensor, stages: Tensor | None, good: Tensor, bad: Tensor, slow: list[Step]
) -> tuple[Step, ...]:
    """The steps of a batch with some samples solved layer by layer, with one solution per layer.

    The steps of the group solve count in the first layer.
    """
    steps = []
    for n, (y, step) in enumerate(zip(states.unbind(1), slow, strict=True)):
        quick = None if stages is None else stages[:, n]
        steps.append(Step(Carry((y,)), (joined(solution, good, quick, bad, step.solutions[0], n == 0),)))
    return tuple(steps)
