"""The theta scheme: the implicit residual layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.torch_func import whole
from resolvent.schemes.interval import Interval, Number
from resolvent.schemes.linear_form import LinearForm
from resolvent.schemes.runge_kutta import RungeKutta
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.tableau import Tableau

FORMS = ("midpoint", "trapezoid")


@dataclass(frozen=True)
class Theta(Scheme):
    """The theta scheme, in two forms that agree for linear fields:

        midpoint:    y = x + h F(t + theta h, (1 - theta) x + theta y)
        trapezoid:   y = x + h ((1 - theta) F(t, x) + theta F(t + h, y)).

    theta = 0 is the residual layer x + h F(t, x), without a solve; 1/2 the implicit midpoint or trapezoidal rule, the
    only one of order 2; 1 backward Euler. The midpoint form takes one resolvent and no further evaluation: with
    w = x + theta h F(t + theta h, w), y = x + (w - x) / theta. This divides the error of w by theta, so the tolerance
    of the solve is multiplied by theta. The requested tolerance then holds for the equation of y.

    Arguments:
        theta: a number in [0, 1], or a 0-d tensor in (0, 1], which is differentiable.
        form: "midpoint" or "trapezoid".

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, equations (9) and (10).
    """

    theta: float | Tensor = 0.5
    form: str = "midpoint"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {FORMS}, got {self.form!r}.")
        if isinstance(self.theta, Tensor):
            if self.theta.dim() > 0 or not 0 < self.smallest <= 1:
                raise ValueError(f"theta as a tensor must be 0-d and lie in (0, 1], got {self.theta}.")
        elif not isinstance(self.theta, int | float) or not 0 <= self.theta <= 1:
            raise ValueError(f"theta must lie in [0, 1], got {self.theta!r}.")

    @property
    def order(self) -> int:
        return 2 if self.smallest == 0.5 else 1

    @property
    def implicit(self) -> bool:
        return isinstance(self.theta, Tensor) or self.theta != 0

    @property
    def inverse(self) -> "Theta":
        return Theta(1 - self.theta, self.form)

    @property
    def as_runge_kutta(self) -> RungeKutta:
        """The same scheme by its Runge-Kutta table: one stage for the midpoint form, two for the trapezoid form."""
        theta = self.smallest
        if self.form == "midpoint":
            return RungeKutta(Tableau(((theta,),), (1.0,), self.order))
        return RungeKutta(Tableau(((0.0, 0.0), (1 - theta, theta)), (1 - theta, theta), self.order))

    @property
    def linear_form(self) -> LinearForm:
        return self.as_runge_kutta.linear_form

    @property
    def stage_norm(self) -> float:
        return self.smallest

    @property
    def chord(self) -> Number | None:
        return self.theta if self.form == "midpoint" else None

    @property
    def solved_at(self) -> float:
        return self.smallest if self.form == "midpoint" else super().solved_at

    @property
    def algebraically_stable(self) -> bool:
        return self.as_runge_kutta.algebraically_stable

    def order_by_conditions(self) -> int:
        return self.as_runge_kutta.order_by_conditions()

    def step(self, interval: Interval, carry: Carry) -> Step:
        x = carry.states[0]
        if not self.implicit:
            return Step(Carry((x + interval.step * interval.evaluate(0.0, x),)))
        if self.form == "trapezoid":
            return self._trapezoid(interval, x)
        theta, guess = self.theta, interval.predict(1.0)
        # The stage lies on the chord from x to y, and so does the guess.
        w0 = None if guess is None else x + theta * (guess - x)
        solution = interval.resolve(theta, x, theta, w0, amplification=1 / self.smallest)
        w = solution.value
        y = w if not isinstance(theta, Tensor) and theta == 1 else torch.lerp(x, w, 1 / theta)
        return Step(Carry((y,)), (solution,))

    def _trapezoid(self, interval: Interval, x: Tensor) -> Step:
        theta, b = self.theta, x
        if isinstance(theta, Tensor) or theta != 1:
            b = x + (1 - theta) * interval.step * interval.evaluate(0.0, x)
        solution = interval.resolve(1.0, b, theta, interval.predict(1.0))
        return Step(Carry((solution.value,)), (solution,))

    @property
    def smallest(self) -> float:
        """theta as a number; the smallest over the copies of a vmapped function."""
        return float(whole(self.theta.detach()).min()) if isinstance(self.theta, Tensor) else float(self.theta)
