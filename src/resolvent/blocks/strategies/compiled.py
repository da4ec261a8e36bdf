"""Theta layers that are solved for together by a compiled function."""

import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.blocks.strategies.all_together import AllTogether, applies, group_amplification, together
from resolvent.blocks.strategies.newton_graph import EVALUATIONS, Group, GroupResult, solve_group
from resolvent.blocks.strategies.strategy import Strategy
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.function import time_columns
from resolvent.equation.solution import Solution, Status, Work
from resolvent.errors import DerivativeOrderError
from resolvent.schemes.scheme import Carry, Step
from resolvent.solvers.newton import Newton

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# Numbers of steps that are compiled for: a group that needs five makes six.
_STEPS = (2, 3, 4, 6, 8)

BACKEND = "inductor"


class Compiled(Strategy):
    """`AllTogether` with the whole solve and its derivative compiled by `torch.compile`.

    For small systems it is again several times as fast, after some seconds for each new batch size. It takes fields
    whose `value_and_jacobian` is known, such as `rs.fields.MLP`, and gives first derivatives, from a graph that can be
    walked once.

    How many steps a group needs is learned: the first time it is solved as usual, and again whenever the compiled
    steps were not enough. That changes no result: samples that have converged do not move any more.
    """

    def __init__(self) -> None:
        self._together = AllTogether()
        self._steps: dict[int, int] = {}
        self._functions: dict[tuple[int, int], Callable[..., GroupResult]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # What is compiled can be neither copied nor stored.
        return {"_together": self._together, "_steps": self._steps, "_functions": {}}

    def check(self, pass_: "Pass") -> None:
        self._together.check(pass_)
        if pass_.vector_field.value_and_jacobian is None:
            raise ValueError(
                'mode="compiled" takes a field with a Jacobian in closed form; '
                f'{type(pass_.field).__name__} has none: take mode="parallel".'
            )
        if pass_.options.adjoint != ImplicitAdjoint():
            raise ValueError(
                'mode="compiled" gives first derivatives by rs.ImplicitAdjoint() alone, got '
                f'{pass_.options.adjoint}: take mode="parallel".'
            )

    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        size = self._together.group(pass_, x)
        if not applies(pass_, x):
            yield from pass_.in_turn(range(pass_.num_steps), x)
            return
        for start in range(0, pass_.num_steps, size):
            numbers = range(start, min(start + size, pass_.num_steps))
            steps = self._attempt(pass_, numbers, x)
            if steps is None:
                steps = together(pass_, numbers, x)
                self._learn(start, steps)
                # The derivatives of a block must not depend on whether it has been compiled yet.
                steps = tuple(Step(Carry((_FirstOrder.apply(step.state),)), step.solutions) for step in steps)
            yield from steps
            x = steps[-1].state

    def _attempt(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...] | None:
        """The steps of a group by a compiled function, or None where it has to be solved as usual."""
        if numbers.start not in self._steps or isinstance(pass_.scheme.chord, Tensor):
            return None
        layers, steps = key = len(numbers), self._steps[numbers.start]
        if key not in self._functions:
            self._functions[key] = torch.compile(_own_code(solve_group), backend=BACKEND, dynamic=False)
        result = self._functions[key](_group(pass_, numbers, x), x, layers, steps)
        # Waits for the device once a group.
        return _as_steps(result, EVALUATIONS + steps) if bool(result.good) else None

    def _learn(self, start: int, steps: tuple[Step, ...]) -> None:
        """Notes how many steps the solver of a group has made."""
        solutions = [solution for step in steps for solution in step.solutions]
        if len(solutions) == 1:
            needed = int(solutions[0].steps.max())
            enough = [count for count in _STEPS if count >= max(needed, self._steps.get(start, 0))]
            if enough:
                self._steps[start] = enough[0]


def _own_code(function: Callable[..., GroupResult]) -> Callable[..., GroupResult]:
    """The function with a code object of its own: torch limits how often it compiles one."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _group(pass_: "Pass", numbers: range, x: Tensor) -> Group:
    theta = pass_.scheme.solved_at
    first = pass_.interval(numbers[0])
    times = first.time(theta)
    if not pass_.vector_field.autonomous:
        times = time_columns([pass_.interval(n).time(theta) for n in numbers], x).flatten()
    asked = pass_.options.stopping
    tight = asked.tightened(group_amplification(theta, len(numbers)), x.dtype)
    tolerances = [value for rule in (tight, asked) for value in (rule.relative(x.dtype), rule.absolute(x.dtype))]
    return Group(pass_.field, times, first.step, theta, *tolerances)


def _as_steps(result: GroupResult, evaluations: int) -> tuple[Step, ...]:
    count, work = result.steps, Work(evaluations=evaluations)
    status = torch.full_like(count, Status.CONVERGED.value)
    solution = Solution(
        result.stages, status, result.residual, count, torch.zeros_like(count), (Newton(),), work, all_converged=True
    )
    states: Tensor = _FirstOrder.apply(result.states)
    return tuple(Step(Carry((y,)), (solution,) if n == 0 else ()) for n, y in enumerate(states.unbind(1)))


class _FirstOrder(torch.autograd.Function):
    """The states as they are. A graph of their derivatives cannot be made, and is refused before torch's compiler does
    it with a message of its own."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise DerivativeOrderError(
                'mode="compiled" has first derivatives only, and a graph of them was asked for (create_graph=True): '
                'take mode="parallel" with adjoint=rs.ImplicitAdjoint(order=2).'
            )
        return cotangents[0]
