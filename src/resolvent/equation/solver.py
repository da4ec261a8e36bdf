"""What a solver is: settings, a first state, and a step. The loop is not its business."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from resolvent.equation.matrix import Matrix
from resolvent.equation.problem import Problem


@dataclass(kw_only=True)
class State:
    """Where a solver stands; solvers add what they need. Every tensor has a row per sample.

    Attributes:
        w: (batch, *shape), the iterate.
        norm: (batch,), the root mean square of its defect.
        broken: (batch,), samples whose method cannot go on; None where that cannot happen.
        matrix: I - tau F'(w), where the solver has it.
        floor: (batch,), the residual that the rounding of the equation's terms leaves, where the solver knows it. No
            method gets below it, and none is asked to.
    """

    w: Tensor
    norm: Tensor
    broken: Tensor | None = None
    matrix: Matrix | None = None
    floor: Tensor | None = None


class Attempt(NamedTuple):
    """One entry of a plan: a solver, and its most steps where they are not its own default."""

    solver: "Solver"
    max_steps: int | None = None


class Plan(ABC):
    """Which solvers to try on a problem, and in which order. A `Solver` is a plan of one."""

    @abstractmethod
    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        """The solvers to try in order, each on the samples that the ones before it left unsolved."""

    @abstractmethod
    def linear_plan(self, problem: Problem) -> "Plan":
        """What to solve the linear system of the backward pass with, when the user leaves it open."""


class Solver(Plan):
    """A method for w = b + tau F(w): an immutable record of settings that steps all samples at once.

    To write one, derive a frozen dataclass and give it `init` and `step`. The loop judges convergence, freezes
    finished samples and counts steps; a step has to leave the samples outside `running` where they are.
    """

    max_steps: ClassVar[int] = 100
    """Steps after which a sample is given up, unless `Stopping` says otherwise."""

    estimates: ClassVar[bool] = False
    """Whether `State.norm` follows from a recurrence, and has to be confirmed before it is believed."""

    monotone: ClassVar[bool] = False
    """Whether `State.norm` never grows, so that the last iterate is the best one."""

    learns: ClassVar[bool] = False
    """Whether `resume` makes use of an earlier state, which is then kept with the solution."""

    unrollable: ClassVar[bool] = False
    """Whether autograd can differentiate through the steps."""

    @abstractmethod
    def init(self, problem: Any, w: Tensor) -> Any:
        """The state at the first guess w."""

    @abstractmethod
    def step(self, problem: Any, state: Any, running: Tensor) -> Any:
        """The state after one more step of the samples that are `running`, (batch,)."""

    def resume(self, problem: Any, w: Tensor, before: Any) -> Any:
        """The state at w, with what was learned in the solve of a similar problem that ended in the state `before`."""
        return self.init(problem, w)

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return (Attempt(self),)
