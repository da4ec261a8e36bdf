"""Line search for the strong Wolfe conditions: one trial point per call, one line per sample."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

# Armijo's condition: the objective must fall by this fraction of the first slope.
_SUFFICIENT = 1e-4
# An accepted slope is at most this fraction of the first one, even with rounding: trials too close to the start fail.
_STEEPEST = 0.9
# The least distance of a trial from the ends of its bracket, as a fraction of the bracket.
_MARGIN = 0.1


@dataclass
class LineSearch:
    """The state of the search along phi(t) = |r(t)|^2 / 2; all fields are (batch,).

    Attributes:
        phi, slope: value and derivative at t = 0.
        rounding: the rounding error of r, in the norm of phi.
        t: the next trial.
        low, high: a bracket of a minimum; high is infinite until a trial is beyond one.
        low_slope: the derivative at low.
        trials: the number of trials.
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
    """Tests the trial at t, given phi(t) and its slope. Returns the search with a new trial, and the mask (batch,) of
    accepted trials.

    A trial is accepted if it decreases phi sufficiently and |slope| <= curvature |slope at 0|. A small curvature gives
    a line minimisation. New trials are secant steps to a zero of the slope, kept in the bracket.

    Both conditions hold up to rounding. Near a root the decrease of phi falls below the rounding of its values long
    before r does. The slopes, which are not differences, then decide alone (the approximate Wolfe conditions of Hager
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
    """Bounds for the effect of the rounding of r on a difference of two values of phi, and on the slope at t.

    An error e of r changes phi by r.e + |e|^2 / 2, and the slope r.r' by e.r'. The square of r' approximates the second
    derivative of phi, which is estimated by the difference quotient of the two slopes.
    """
    value_error = (2 * (2 * line.phi).sqrt() + line.rounding) * line.rounding
    steepening = ((slope - line.slope) / line.t).clamp(min=0)
    return value_error, line.rounding * steepening.sqrt()
