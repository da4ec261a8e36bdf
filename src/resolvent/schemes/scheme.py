"""`Scheme`: a rule that advances the state over one interval of time, with properties for its analysis."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.equation.solution import Solution
from resolvent.schemes.interval import Interval, Number
from resolvent.schemes.linear_form import LinearForm


class Carry(NamedTuple):
    """What one step passes to the next.

    Attributes:
        states: (batch, *shape) each, the latest first. One-step schemes keep one, multistep schemes several.
        slopes: F at earlier times, the latest first, for the schemes that use them.
    """

    states: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...] = ()


class Step(NamedTuple):
    """The result of one step: the carry, and its solves (none for an explicit step)."""

    carry: Carry
    solutions: tuple[Solution, ...] = ()

    @property
    def state(self) -> Tensor:
        return self.carry.states[0]


class Scheme(ABC):
    """A time integrator for y' = F(t, y): an immutable record of coefficients.

    A step uses the field only through evaluations, `Interval.evaluate`, and resolvents, `Interval.resolve`. Both take
    the fraction c of the interval at which the field is evaluated, so a scheme consists only of the numbers of its
    table and does not use the time.

    A new scheme defines `order`, `step` and `inverse`. `resolvent.analysis` and `resolvent.plotting` also need
    `linear_form` for its stability. The other properties have defaults for one-step schemes.
    """

    @property
    @abstractmethod
    def order(self) -> int:
        """The power of h that the error is proportional to, for smooth fields."""

    @property
    def implicit(self) -> bool:
        """Whether a step solves equations, and so evaluates the field an unknown number of times."""
        return True

    @abstractmethod
    def step(self, interval: Interval, carry: Carry) -> Step:
        """Advances the state from the start of the interval to its end."""

    @property
    @abstractmethod
    def inverse(self) -> "Scheme":
        """The scheme that inverts a step of this one on the reversed interval; a symmetric scheme is its own inverse.

        Reference: Hairer, Lubich & Wanner, Geometric numerical integration, section II.3 (the adjoint method).
        """

    @property
    def linear_form(self) -> LinearForm:
        """One step on the linear test equation, the basis of the linear stability analysis."""
        raise ValueError(
            f"the stability of {type(self).__name__} is not known: define its property `linear_form`, a "
            "resolvent.schemes.LinearForm."
        )

    def order_by_conditions(self) -> int:
        """The order by the order conditions, from the coefficients alone; at most 6 is computed."""
        raise ValueError(
            f"the order conditions of {type(self).__name__} are not known: ask its `order`, or define its method "
            "`order_by_conditions`."
        )

    @property
    def stage_norm(self) -> float:
        """The factor by which |z| enters the fixed-point iteration for the stages: it contracts for |z| stage_norm < 1.

        0 if there is nothing to solve. The default is for schemes that solve all stages together.
        """
        return float(torch.linalg.matrix_norm(self.linear_form.A, 2)) if self.implicit else 0.0

    @property
    def chord(self) -> Number | None:
        """theta, if a step is y = x + h F(t + theta h, w) with the stage w = (1 - theta) x + theta y; otherwise None.

        The layers of such a scheme can be solved together, and its tangents are steps of the same kind.
        """
        return None

    @property
    def solved_at(self) -> float:
        """The position on the chord from the old state, 0, to the new one, 1, where a step's equation is solved."""
        return 1.0 if self.stage_norm > 0 else 0.0

    @property
    def algebraically_stable(self) -> bool | None:
        """Whether a step is non-expansive for every dissipative field; None if it is not of Runge-Kutta type."""
        return None

    @property
    def one_step(self) -> bool:
        """Whether a step needs only the last state."""
        return True

    @property
    def acts_on_halves(self) -> bool:
        """Whether a step treats the two halves (q, p) of a state differently."""
        return False
