"""`SolveOptions`: the options that all solves of a pass share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from resolvent.equation.failure import Policy
from resolvent.equation.place import Place
from resolvent.equation.problem import changed
from resolvent.equation.solution import Solution
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule

T = TypeVar("T")


@dataclass(frozen=True)
class SolveOptions:
    """How an equation is solved and differentiated, and what happens on failure.

    Attributes:
        solver: a solver, or a plan of several.
        stopping: the tolerance.
        adjoint: an `Adjoint`.
        on_failure: "raise", "warn", "ignore", or a `Mask`.
        place: the position in a network, for messages; None outside a network.
        observe: called with the `Solution` of every solve, forward and backward.
        asked: the tolerance of the user, if `stopping` is a tighter one.
    """

    solver: Plan
    stopping: StoppingRule
    adjoint: Any
    on_failure: Policy
    place: Place | None = None
    observe: Callable[[Solution], None] | None = None
    asked: StoppingRule | None = None

    def tightened(self, amplification: float, b: Tensor) -> "SolveOptions":
        """The options for a stage whose error the step multiplies by `amplification`.

        The user's tolerance then holds for the equation of the step, not only for that of the stage. The linear systems
        of the backward pass keep it: a gradient is not multiplied.
        """
        if amplification <= 1:
            return self
        precision = precision_of(b)
        tight = self.stopping.tightened(amplification, precision)
        return changed(self, stopping=tight, asked=self.asked or self.stopping)

    def for_backward(self) -> StoppingRule:
        """The tolerance of the linear systems in the backward pass."""
        return (self.asked or self.stopping).for_backward()


def precision_of(b: Tensor) -> torch.dtype:
    """The dtype F computes in for arguments like b: that of autocast if it is on. Autocast does not change float64."""
    if torch.is_autocast_enabled(b.device.type) and b.dtype != torch.float64:
        return torch.get_autocast_dtype(b.device.type)
    return b.dtype


def expect(value: T | None, kind: type[T], default: T, name: str, example: str) -> T:
    """The value, or the default if it is None. Raises if the value is of another kind."""
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be an object such as {example}, or None, got {value!r}.")
    return value
