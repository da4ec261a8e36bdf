"""Groups of theta layers that are solved for by a compiled function."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.newton_graph import EVALUATIONS, Attempt, Group, attempt
from resolvent.core.solution import Solution, Status, Work
from resolvent.schemes.interval import Interval, time_columns
from resolvent.schemes.scheme import Carry, Step
from resolvent.schemes.theta import Theta
from resolvent.solvers.newton import Newton

# Numbers of steps that are compiled for: a group that needs five makes six.
_STEPS = (2, 3, 4, 6, 8)

BACKEND = "inductor"

Key = tuple[int, int]


class Compiled:
    """The compiled functions of a block, one for each number of layers and of steps.

    How many steps a group needs is learned: the first time it is solved as usual, and again whenever the compiled
    steps were not enough. To look at that takes one number from the device a group.
    """

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._functions: dict[Key, Callable[..., Attempt]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_steps": self._steps, "_functions": {}}  # What is compiled can be neither copied nor stored.

    def steps(self, scheme: Theta, number: int, intervals: list[Interval], x: Tensor) -> tuple[Step, ...] | None:
        """The steps of the group that begins with a layer of this number, or None where it has to be solved as usual.

        The arguments are those of `Theta.steps`.
        """
        if number not in self._steps or torch.is_autocast_enabled(x.device.type) or x.dtype.itemsize < 4:
            return None
        key = len(intervals), self._steps[number]
        if key not in self._functions:
            self._functions[key] = torch.compile(_own_code(attempt), backend=BACKEND, dynamic=False)
        result = self._functions[key](_group(scheme, intervals, x), x, *key)
        if not result.good:
            return None
        return _as_steps(result, EVALUATIONS + key[1])

    def learn(self, number: int, steps: tuple[Step, ...]) -> None:
        """Takes note of how many steps the solver of a group has made."""
        solutions = [solution for step in steps for solution in step.solutions]
        if len(solutions) == 1:
            needed = int(solutions[0].steps.max())
            enough = [count for count in _STEPS if count >= max(needed, self._steps.get(number, 0))]
            if enough:
                self._steps[number] = enough[0]


def _own_code(function: Callable[..., Attempt]) -> Callable[..., Attempt]:
    """The function with a code object of its own: torch limits how often it compiles one."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _group(scheme: Theta, intervals: list[Interval], x: Tensor) -> Group:
    first, theta = intervals[0], scheme.theta
    times = first.time(theta)
    if not getattr(first.field, "autonomous", False):
        times = time_columns([interval.time(theta) for interval in intervals], x).flatten()
    inner = first.solving.stopping_for(x, float(len(intervals)))
    outer = first.solving.stopping_for(x, 1.0)
    tolerances = [
        value for stopping in (inner, outer) for value in (stopping.relative(x.dtype), stopping.absolute(x.dtype))
    ]
    return Group(first.field, times, first.length, theta, *tolerances)


def _as_steps(result: Attempt, evaluations: int) -> tuple[Step, ...]:
    count, work = result.steps, Work(evaluations=evaluations)
    status = torch.full_like(count, Status.CONVERGED.value)
    solution = Solution(
        result.stages, status, result.residual, count, torch.zeros_like(count), (Newton(),), work, settled=True
    )
    return tuple(Step(Carry((y,)), (solution,) if n == 0 else ()) for n, y in enumerate(result.states.unbind(1)))
