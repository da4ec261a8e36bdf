"""`Compiled`: solves theta layers together by a compiled function."""

import functools
import logging
import math
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.blocks.strategies.all_together import AllTogether, applies, together
from resolvent.blocks.strategies.group_tolerance import group_amplification
from resolvent.blocks.strategies.newton_graph import (
    EVALUATIONS,
    Group,
    GroupResult,
    NewtonStep,
    newton_step,
    solve_group,
)
from resolvent.blocks.strategies.strategy import Strategy
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.function import time_columns
from resolvent.equation.solution import Solution, Work
from resolvent.equation.stopping import StoppingRule
from resolvent.errors import DerivativeOrderError
from resolvent.schemes.interval import Number
from resolvent.schemes.scheme import Carry, Step
from resolvent.solvers.auto import NEWTON_ALONE
from resolvent.solvers.newton import Newton

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# The step counts that are compiled; the next larger one is used, six for a group that needs five.
_STEPS = (2, 3, 4, 6, 8)
# For larger states compilation takes minutes, and gains little.
_MOST_UNKNOWNS = 10

BACKEND = "inductor"

_NEWTON = Newton()

_log = logging.getLogger("resolvent")


class Compiled(Strategy):
    """`AllTogether` with the whole solve and its derivative compiled by `torch.compile`.

    For small systems it is again several times as fast, after some seconds of compilation per batch size. It needs a
    field with `value_and_jacobian`, such as `rs.fields.MLP`, and gives first derivatives only, by one backward pass per
    call. Each compilation is logged, as "resolvent", at the level INFO. States of more than ten unknowns are solved as
    by `AllTogether`, which a warning in the log says once: compilation takes minutes there, and gains little.

    The step count of a group is learned: a group is solved by `AllTogether` the first time, and whenever the compiled
    steps are not enough. This changes no result: converged samples do not move.
    """

    def __init__(self) -> None:
        self._together = AllTogether()
        self._steps: dict[int, int] = {}
        self._functions: dict[tuple[int, int], Callable[..., GroupResult]] = {}
        self._declined = False
        self._unrolled = False

    def __getstate__(self) -> dict[str, Any]:
        # Compiled functions can be neither copied nor pickled.
        return {**self.__dict__, "_functions": {}}

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
        if math.prod(x.shape[1:]) > _MOST_UNKNOWNS:
            self._decline(x)
            yield from map(_first_order, self._together.steps(pass_, x))
            return
        for start in range(0, pass_.num_steps, size):
            numbers = range(start, min(start + size, pass_.num_steps))
            steps = self._attempt(pass_, numbers, x)
            if steps is None:
                steps = together(pass_, numbers, x, NEWTON_ALONE)
                self._learn(start, steps)
                # Which derivatives exist must not depend on whether the block is compiled yet.
                steps = tuple(map(_first_order, steps))
            yield from steps
            x = steps[-1].state

    def _attempt(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...] | None:
        """The steps of a group by a compiled function, or None if `AllTogether` must solve it."""
        if numbers.start not in self._steps or isinstance(pass_.scheme.chord, Tensor):
            return None
        layers, steps = key = len(numbers), self._steps[numbers.start]
        if key not in self._functions:
            _log.info(
                'mode="compiled": compiling %d Newton steps of %d layers for %s, which takes some seconds.',
                steps,
                layers,
                tuple(x.shape),
            )
            self._functions[key] = torch.compile(_own_code(solve_group), backend=BACKEND, dynamic=False)
        result = self._call(key, _group(pass_, numbers, x), x)
        # Waits for the device once per group.
        return _as_steps(result, EVALUATIONS + steps) if bool(result.good) else None

    def _call(self, key: tuple[int, int], group: Group, x: Tensor) -> GroupResult:
        function = self._functions[key]
        if self._unrolled:
            return function(group, x, *key, newton_step)
        try:
            return function(group, x, *key, _compiled_once())
        except RuntimeError:
            # A region cannot hold a field that uses views of its weights. Other errors come again.
            self._unrolled = True
            return self._call(key, group, x)

    def _decline(self, x: Tensor) -> None:
        if not self._declined:
            _log.warning(
                'mode="compiled" is for states of at most %d unknowns: those of shape %s are solved as by '
                'mode="parallel", not compiled.',
                _MOST_UNKNOWNS,
                tuple(x.shape[1:]),
            )
        self._declined = True

    def _learn(self, start: int, steps: tuple[Step, ...]) -> None:
        """Records how many steps the solver of a group made."""
        solutions = [solution for step in steps for solution in step.solutions]
        if len(solutions) == 1:
            needed = int(solutions[0].steps.max())
            enough = [count for count in _STEPS if count >= max(needed, self._steps.get(start, 0))]
            if enough:
                self._steps[start] = enough[0]


def _first_order(step: Step) -> Step:
    return Step(Carry((_FirstOrder.apply(step.state),)), step.solutions)


def _own_code(function: Callable[..., GroupResult]) -> Callable[..., GroupResult]:
    """The function with its own code object: torch limits how often it compiles one."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


@functools.cache
def _compiled_once() -> NewtonStep:
    """The step as a region that is compiled once, however many steps a graph has: made late, as it loads dynamo."""
    region: NewtonStep = torch.compiler.nested_compile_region(newton_step)
    return region


def _group(pass_: "Pass", numbers: range, x: Tensor) -> Group:
    theta: float = pass_.scheme.solved_at
    times: Number = 0.0
    if not pass_.vector_field.autonomous:
        times = time_columns([pass_.interval(n).time(theta) for n in numbers], x).flatten()
    return Group(pass_.field, times, pass_.h, theta, *_tolerances(pass_.options.stopping, theta, len(numbers), x.dtype))


@functools.lru_cache(maxsize=64)
def _tolerances(asked: StoppingRule, theta: float, layers: int, precision: torch.dtype) -> tuple[float, ...]:
    """Those of `Group`."""
    tight = asked.tightened(group_amplification(theta, layers), precision)
    return tuple(value for rule in (tight, asked) for value in (rule.relative(precision), rule.absolute(precision)))


def _as_steps(result: GroupResult, evaluations: int) -> tuple[Step, ...]:
    solution = Solution(
        result.stages,
        result.status,
        result.residual,
        result.steps,
        result.solver_index,
        (_NEWTON,),
        Work(evaluations=evaluations),
        all_converged=True,
    )
    states: Tensor = _FirstOrder.apply(result.states)
    return tuple(Step(Carry((y,)), (solution,) if n == 0 else ()) for n, y in enumerate(states.unbind(1)))


class _FirstOrder(torch.autograd.Function):
    """Returns the states unchanged. On create_graph=True it raises with a clearer message than torch's compiler."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise DerivativeOrderError(
                'mode="compiled" has first derivatives only, but a graph of them was requested (create_graph=True): '
                'take mode="parallel" with adjoint=rs.ImplicitAdjoint(order=2).'
            )
        return cotangents[0]
