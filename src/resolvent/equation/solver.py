"""The solver interface: settings, a first state, and a step. The loop is in `resolvent.equation.loop`."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from resolvent.equation.matrix import Matrix
from resolvent.equation.problem import Problem


@dataclass(kw_only=True)
class State:
    """The state of a solver; subclasses add what they need. Every tensor has one row per sample.

    Attributes:
        w: (batch, *shape), the iterate.
        norm: (batch,), the root mean square of its defect.
        r: the defect, if it is kept.
        broken: mask (batch,) of samples on which the method cannot continue; None if that cannot happen.
        matrix: I - tau F'(w), if the solver has it.
        floor: (batch,), the residual that the rounding of the equation's terms leaves, if the solver computes it. No
            method can go below it, so it counts as converged.
    """

    w: Tensor
    norm: Tensor
    r: Tensor | None = None
    broken: Tensor | None = None
    matrix: Matrix | None = None
    floor: Tensor | None = None


class InverseState(State, ABC):
    """The state of a solver with `has_inverse`."""

    @abstractmethod
    def inverse(self, problem: Problem, x: Tensor, transposed: bool) -> Tensor:
        """H x or H^T x, where H is the approximation to (I - tau F')^{-1} that the solver has built."""


class Attempt(NamedTuple):
    """One entry of a plan.

    Attributes:
        solver: the method.
        max_steps: its step limit; None takes the solver's default.
        quick: whether to give up samples that do not contract quickly. For the plain fixed point, as the first attempt.
        rate: the fraction to which the steps of a quick attempt must reduce the residual on average.
        lead: the factor by which the residual of a quick attempt may lag behind this rate.
        most_expected: a sample of a quick attempt is slow if it is expected to need more steps than these in all.
        memory: by how many of their last changes slow samples are accelerated; with 0 they are given up.
    """

    solver: "Solver"
    max_steps: int | None = None
    quick: bool = False
    rate: float = 0.7
    lead: float = 1.0
    most_expected: float = math.inf
    memory: int = 0


class Plan(ABC):
    """Which solvers to try on a problem, and in which order. A `Solver` is a plan of one."""

    @abstractmethod
    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        """The solvers to try in order, each on the samples that the earlier ones left unsolved."""

    @abstractmethod
    def linear_plan(self, problem: Problem) -> "Plan":
        """The plan for the linear system of the backward pass, if the user does not choose one."""


class Solver(Plan):
    """A method for w = b + tau F(w): an immutable record of settings that steps all samples at once.

    To write one, derive a frozen dataclass with `init` and `step`. The loop checks convergence, freezes finished
    samples and counts steps. A step must not move the samples outside `running`.
    """

    max_steps: ClassVar[int] = 100
    """The most steps of a sample, unless `Stopping` sets another limit."""

    estimates: ClassVar[bool] = False
    """Whether `State.norm` comes from a recurrence, so that the loop must verify it."""

    monotone: ClassVar[bool] = False
    """Whether `State.norm` never grows, so that the last iterate is the best one."""

    at_once: ClassVar[bool] = False
    """Whether `init` solves a linear system directly, whatever the guess, so that the steps only refine its solution.
    It counts as a step, and the size of its result shows nothing about the system."""

    last_evaluated: ClassVar[bool] = False
    """Whether `State.w` is the very tensor at which a step has evaluated its last defect, whatever came of it. With a
    fixed number of steps it cannot be compared with another."""

    learns: ClassVar[bool] = False
    """Whether `resume` uses an earlier state. The solution then keeps the last state."""

    has_inverse: ClassVar[bool] = False
    """Whether the states have an `inverse`. That of a sample must not depend on the other samples."""

    has_matrix: ClassVar[bool] = False
    """Whether the states have `State.matrix`."""

    patience: ClassVar[int] = 0
    """Steps without progress that are normal for the method; `Stopping` may allow more."""

    unrollable: ClassVar[bool] = False
    """Whether autograd can differentiate through the steps."""

    @abstractmethod
    def init(self, problem: Any, w: Tensor) -> Any:
        """The state at the first guess w."""

    @abstractmethod
    def step(self, problem: Any, state: Any, running: Tensor) -> Any:
        """The state after one more step of the samples that are `running`, (batch,)."""

    def resume(self, problem: Any, w: Tensor, before: Any) -> Any:
        """The state at w, reusing what the solve of a similar problem, which ended in the state `before`, learned."""
        return self.init(problem, w)

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return (Attempt(self),)
