"""Samples of a group that did not converge: they are solved layer by layer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.equation.failure import Defer
from resolvent.equation.solution import Solution, joined
from resolvent.errors import ConvergenceError
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


def solved_apart(pass_: "Pass", numbers: range, x: Tensor, group: Solution, good: Tensor, bad: Tensor) -> list[Step]:
    """The layers of the samples `bad`, one after the other. An error gets a solution for the whole batch: the samples
    `good` were solved in the `group`."""
    steps: list[Step] = []
    policy = pass_.options.on_failure
    known = policy.error if isinstance(policy, Defer) else None

    def complete(error: ConvergenceError) -> None:
        n, own = len(steps), error.solution
        # The field may solve equations of its own, with errors of their own.
        if not isinstance(own, Solution) or own.status.shape != bad.shape or own.value.shape[1:] != x.shape[1:]:
            return
        quick = None if len(good) == 0 else group.value[good, n].detach()
        error.solution = joined(group, good, quick, bad, own, n == 0)

    try:
        for step in in_turn_from(pass_.take(bad, len(x)), numbers, x[bad], group.value[bad].detach()):
            if isinstance(policy, Defer) and known is None and policy.error is not None:
                known = policy.error
                complete(known)
            steps.append(step)
    except ConvergenceError as error:
        complete(error)
        raise
    return steps


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
