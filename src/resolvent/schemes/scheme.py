"""What a scheme is: a rule that advances the state over one interval of time."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from resolvent.equation.solution import Solution
from resolvent.schemes.interval import Interval


class Carry(NamedTuple):
    """What a step hands on to the next one.

    Attributes:
        states: (batch, *shape) each, the latest first. One-step schemes keep one, multistep schemes several.
        slopes: F at earlier times, the latest first, for the schemes that use them.
    """

    states: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...] = ()


class Step(NamedTuple):
    """The outcome of one step: what is carried on, and the solves that it took (none for an explicit step)."""

    carry: Carry
    solutions: tuple[Solution, ...] = ()

    @property
    def state(self) -> Tensor:
        return self.carry.states[0]


class Scheme(ABC):
    """A time integrator for y' = F(t, y): an immutable record of coefficients with one method.

    A step consists of evaluations of the field and of resolvents, `Interval.evaluate` and `Interval.resolve`, and of
    nothing else; both take the fraction c of the interval at which the field is meant, so that a scheme is written in
    the numbers of its table and never sees the time.
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
        """The scheme that undoes a step of this one on the reversed interval; a symmetric scheme is its own inverse.

        Reference: Hairer, Lubich & Wanner, Geometric numerical integration, section II.3 (the adjoint method).
        """
