"""The theta scheme: the implicit residual layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.core.problem import rms, select
from resolvent.core.solution import Solution
from resolvent.core.stopping import Stopping
from resolvent.core.transforms import whole
from resolvent.schemes.interval import Interval, Number, couple
from resolvent.schemes.scheme import Carry, Scheme, Step

FORMS = ("midpoint", "trapezoid")
# The ratio of two changes below which a fixed-point iteration is worth following.
_CONTRACTS = 1.0


@dataclass(frozen=True)
class Theta(Scheme):
    """The theta scheme, in the two forms that agree for linear fields:

        midpoint:    y = x + h F(t + theta h, (1 - theta) x + theta y)
        trapezoid:   y = x + h ((1 - theta) F(t, x) + theta F(t + h, y)).

    theta = 0 is the residual layer x + h F(t, x), without a solve; 1/2 the implicit midpoint or trapezoidal rule, the
    only one of order 2; 1 backward Euler. The midpoint form takes one resolvent and no evaluation besides: with
    w = x + theta h F(t + theta h, w), y = x + (w - x) / theta. An error of w is thereby divided by theta, and so is the
    tolerance of its solve multiplied: the tolerance that is asked for holds for the equation of y.

    Arguments:
        theta: a number in [0, 1], or a tensor of no dimension in (0, 1], to be differentiated.
        form: "midpoint" or "trapezoid".

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, equations (9) and (10).
    """

    theta: float | Tensor = 0.5
    form: str = "midpoint"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {FORMS}, got {self.form!r}.")
        if isinstance(self.theta, Tensor):
            if self.theta.dim() > 0 or not 0 < self._smallest <= 1:
                raise ValueError(f"theta as a tensor must have no dimension and lie in (0, 1], got {self.theta}.")
        elif not isinstance(self.theta, int | float) or not 0 <= self.theta <= 1:
            raise ValueError(f"theta must lie in [0, 1], got {self.theta!r}.")

    @property
    def order(self) -> int:
        return 2 if self._smallest == 0.5 else 1

    @property
    def implicit(self) -> bool:
        return isinstance(self.theta, Tensor) or self.theta != 0

    @property
    def inverse(self) -> "Theta":
        return Theta(1 - self.theta, self.form)

    def step(self, interval: Interval, carry: Carry) -> Step:
        x = carry.states[0]
        if not self.implicit:
            return Step(Carry((x + interval.length * interval.evaluate(0.0, x),)))
        return self._midpoint(interval, x) if self.form == "midpoint" else self._trapezoid(interval, x)

    def steps(self, intervals: Sequence[Interval], x: Tensor) -> tuple[Step, ...] | None:
        """Several steps of the midpoint form, found as the solution of one equation.

        The stages w_n of all steps satisfy

            w_n = x + h (F(w_0) + ... + F(w_{n-1}) + theta F(w_n)),

        a resolvent of as many times the unknowns, in which every evaluation of the field serves all steps at once. For
        theta = 1 the states are the stages; otherwise they follow from the slopes there, whose error is that of the
        stages times h F'. Where that makes the error of a state larger than what was asked for, stages are solved for
        more accurately, and None is returned where that does not help.

        Reference: Lim et al., Parallelizing non-linear sequential models over the sequence length, 2024.
        """
        first, count = intervals[0], len(intervals)
        lower = torch.ones(count, count, dtype=x.dtype, device=x.device).tril()
        mix = lower - (1 - self.theta) * torch.eye(count, dtype=x.dtype, device=x.device)
        F = couple(first.field, [interval.time(self.theta) for interval in intervals], mix, x)
        b = x.unsqueeze(1).expand(-1, count, *x.shape[1:])
        # The norm is a mean over the steps, and the equation of each has to hold.
        solution = first.solve(F, b, first.length, _sweep(F, b.detach(), first.length), amplification=float(count))
        states = solution.value
        if isinstance(self.theta, Tensor) or self.theta != 1:
            stopping = first.solving.stopping_for(x, 1.0)
            if self._enlarges(solution, stopping):
                largest = float(_slopes(solution).max())
                again = first.solve(F, b, first.length, solution.value.detach(), amplification=count * largest)
                solution = again.after(solution)
                if self._enlarges(solution, stopping):
                    return None
            states = b + first.length * F.with_mix(lower)(solution.value)
        return tuple(Step(Carry((y,)), (solution,) if n == 0 else ()) for n, y in enumerate(states.unbind(1)))

    def _enlarges(self, solution: Solution, stopping: Stopping) -> bool:
        """Whether an error of the stages, times h F', is larger than the tolerance of the states."""
        size = rms(solution.value.detach())
        dtype = size.dtype
        tolerance = stopping.absolute(dtype) + stopping.relative(dtype) * size
        return bool((_slopes(solution) * solution.residual > tolerance).any())

    def _midpoint(self, interval: Interval, x: Tensor) -> Step:
        theta, guess = self.theta, interval.predict(1.0)
        # The stage lies on the chord from x to y, so the guess does, too.
        w0 = None if guess is None else x + theta * (guess - x)
        solution = interval.resolve(theta, x, theta, w0, amplification=1 / self._smallest)
        w = solution.value
        y = w if not isinstance(theta, Tensor) and theta == 1 else torch.lerp(x, w, 1 / theta)
        return Step(Carry((y,)), (solution,))

    def _trapezoid(self, interval: Interval, x: Tensor) -> Step:
        theta, b = self.theta, x
        if isinstance(theta, Tensor) or theta != 1:
            b = x + (1 - theta) * interval.length * interval.evaluate(0.0, x)
        solution = interval.resolve(1.0, b, theta, interval.predict(1.0))
        return Step(Carry((solution.value,)), (solution,))

    @property
    def _smallest(self) -> float:
        """theta as a number; the smallest where a vmapped function has several."""
        return float(whole(self.theta.detach()).min()) if isinstance(self.theta, Tensor) else float(self.theta)


def _slopes(solution: Solution) -> Tensor:
    """The largest entry of I - h M F', (batch,): how much an error of the stages may grow."""
    assert solution.matrix is not None
    return solution.matrix.abs().amax(dim=(1, 2))


@torch.no_grad()
def _sweep(F: Callable[[Tensor], Tensor], b: Tensor, h: Number) -> Tensor:
    """Two steps of the fixed point from b, for the samples where it contracts; b itself for the others.

    They are cheap beside the steps of Newton's method that they save, which come with a Jacobian.
    """
    first = b + h * F(b)
    second = b + h * F(first)
    return select(rms(second - first) < _CONTRACTS * rms(first - b), second, b)
