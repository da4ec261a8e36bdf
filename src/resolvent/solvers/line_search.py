"""A line search for the strong Wolfe conditions, one trial point per call, every sample on a line of its own."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

# The fraction of the first slope that the objective has to keep falling by (Armijo's condition).
_SUFFICIENT = 1e-4
# The largest fraction of the first slope that rounding may make acceptable: a trial beside the start is none.
_STEEPEST = 0.9
# How close to the end of its bracket a trial may come, as a fraction of the bracket.
_MARGIN = 0.1


@dataclass
class LineSearch:
    """Where the search along phi(t) = |r(t)|^2 / 2 stands; all fields are (batch,).

    Attributes:
        phi, slope: value and derivative at t = 0.
        rounding: the error that rounding leaves in r, in the norm of phi.
        t: the next trial.
        low, high: a bracket of a minimum; high is infinite until one has been stepped over.
        low_slope: the derivative at low.
        trials: how many there have been.
    """

    phi: Tensor
    slope: Tensor
    rounding: Tensor
    t: Tensor
    low: Tensor
    high: Tensor
    low_slope: Tensor
    trials: Tensor

    @classmethod
    def start(cls, phi: Tensor, slope: Tensor, rounding: Tensor, t: Tensor) -> Self:
        zero = torch.zeros_like(phi)
        return cls(phi, slope, rounding, t, zero, torch.full_like(phi, torch.inf), slope, zero)


def search(line: LineSearch, phi: Tensor, slope: Tensor, curvature: float) -> tuple[LineSearch, Tensor]:
    """Judges the trial at t, given phi(t) and its slope: the search with a new trial, and (batch,) who accepts.

    Accepted is a sufficient decrease with |slope| <= curvature |slope at 0|. A small curvature makes it a line
    minimisation. New trials are secant steps to a zero of the slope, kept inside of the bracket.

    Both conditions hold up to rounding. Near a root the decrease of phi falls below the rounding of its values long
    before r does; the slopes, which are no differences, then decide alone (the approximate Wolfe conditions of Hager
    & Zhang, SIAM Journal on Optimization 16, 2005).
    """
    value_error, slope_error = _rounding(line, slope)
    steep = torch.minimum(curvature * line.slope.abs() + slope_error, _STEEPEST * line.slope.abs())
    risen = ~(phi <= line.phi + _SUFFICIENT * line.t * line.slope + value_error)
    far = risen | ~(slope <= steep)
    short = ~far & (slope < -steep)
    secant = line.low + (line.t - line.low) * line.low_slope / (line.low_slope - slope)

    low, high = torch.where(short, line.t, line.low), torch.where(far, line.t, line.high)
    bracketed, width = high.isfinite(), high - low
    least = torch.where(bracketed, low + _MARGIN * width, 2 * low)
    most = torch.where(bracketed, low + (1 - _MARGIN) * width, 10 * low)
    middle = torch.where(bracketed, low + 0.5 * width, 4 * low)
    usable = secant.isfinite() & ~(risen & ~(slope > 0))
    t = torch.where(usable, secant, middle).clamp(least, most)
    searched = replace(
        line,
        t=t,
        low=low,
        high=high,
        low_slope=torch.where(short, slope, line.low_slope),
        trials=line.trials + 1,
    )
    return searched, ~far & ~short


def _rounding(line: LineSearch, slope: Tensor) -> tuple[Tensor, Tensor]:
    """How far the rounding of r may move a difference of two values of phi, and the slope at t.

    An error e of r changes phi by r.e + |e|^2 / 2, and the slope r.r' by e.r'. The square of r' is the second
    derivative of phi, for which the two slopes give a difference.
    """
    value_error = (2 * (2 * line.phi).sqrt() + line.rounding) * line.rounding
    steepening = ((slope - line.slope) / line.t).clamp(min=0)
    return value_error, line.rounding * steepening.sqrt()
