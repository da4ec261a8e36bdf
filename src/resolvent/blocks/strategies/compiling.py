"""Groups of layers as compiled functions: how many steps they make, and what is compiled."""

import logging
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from resolvent.blocks.strategies.all_together import group_steps
from resolvent.blocks.strategies.group_equation import Solved
from resolvent.equation.failure import Mask
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution, Work
from resolvent.equation.solver import Solver
from resolvent.schemes.scheme import Step

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

BACKEND = "inductor"

MOST_SHAPES = 8
"""Inputs of so many shapes are compiled for; those of others are solved in eager mode."""

LOG = logging.getLogger("resolvent")


class CompiledGroups(ABC):
    """Solves groups of layers by compiled functions that make a fixed number of steps.

    The numbers of steps are learned from solves in eager mode, which also take over whenever they are not enough.

    Attributes:
        method: the name of the method in messages.
        functions: the compiled functions.
        refused: whether the field cannot be compiled.
    """

    method: ClassVar[str]

    def __init__(self) -> None:
        self.functions: dict[tuple[Hashable, ...], Callable[..., Any]] = {}
        self.refused = False
        self._shapes: set[tuple[int, ...]] = set()
        self._warned_of_shapes = False

    def __getstate__(self) -> dict[str, Any]:
        # Compiled functions can be neither copied nor pickled.
        return {**self.__dict__, "functions": {}}

    @abstractmethod
    def attempt(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...] | None:
        """The steps of a group by a compiled function. None if it is not known how many it must make, or if they were
        not enough."""

    @abstractmethod
    def learn(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...]:
        """The steps of a group in eager mode. Learns how many steps the solver has to make."""

    def takes(self, x: Tensor) -> bool:
        """Whether inputs of this shape are compiled for."""
        shape = tuple(x.shape)
        if shape not in self._shapes and len(self._shapes) == MOST_SHAPES:
            if not self._warned_of_shapes:
                LOG.warning('mode="compiled": other shapes than the first %d are solved in eager mode.', MOST_SHAPES)
            self._warned_of_shapes = True
            return False
        self._shapes.add(shape)
        return True

    def refuse(self, error: Exception) -> None:
        """Compiles no more. If the field is at fault, and not the compiler, the error comes again in eager mode."""
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        LOG.warning('mode="compiled": %s cannot be compiled for this field: %s', self.method, reason)
        self.functions.clear()
        self.refused = True

    def compiled(
        self, key: tuple[Hashable, ...], function: Callable[..., Any], what: str, x: Tensor
    ) -> Callable[..., Any]:
        """The compiled function, made once for each key and shape of the input x; `what` it is, for the log. It raises
        if it cannot be compiled as a whole."""
        key = (*key, tuple(x.shape))
        if key not in self.functions:
            LOG.info('mode="compiled": compiling %s for %s, which takes some seconds.', what, tuple(x.shape))
            self.functions[key] = torch.compile(_own_code(function), backend=BACKEND, dynamic=False, fullgraph=True)
        return self.functions[key]


def next_count(counts: tuple[int, ...], needed: int) -> int | None:
    """The number of steps to compile: the next larger one, so that few are compiled. None if none is enough."""
    return next((count for count in counts if count >= needed), None)


def as_steps(
    options: SolveOptions, states: Tensor, result: Solved, solver: Solver, evaluations: int
) -> tuple[Step, ...]:
    """The steps of a group in which all samples converged. Those who count or observe solves are told."""
    if isinstance(options.on_failure, Mask):
        options.on_failure.count_converged(states.shape[0] * states.shape[1])
    solution = solution_of(result, solver, Work(evaluations=evaluations))
    if options.observe is not None:
        options.observe(solution)
    return group_steps(solution, states)


def solution_of(result: Solved, solver: Solver, work: Work, linear: bool = False) -> Solution:
    """The record of a solve in which all samples converged."""
    return Solution(
        result.stages,
        result.status,
        result.residual,
        result.steps,
        result.solver_index,
        (solver,),
        work,
        all_converged=True,
        linear=linear,
    )


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its own code object: torch limits how often it compiles one."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
