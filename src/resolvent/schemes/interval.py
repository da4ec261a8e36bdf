"""`Interval`: the field on one interval of time, and its resolvents."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.function import Function, VectorField, as_vector_field
from resolvent.equation.in_place import change_error, changes_of, explain
from resolvent.equation.mixing import MatrixMixing
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution
from resolvent.solvers.resolve import resolve_with, solve_options

Number = float | Tensor
Field = Callable[[Number, Any], Any]


@dataclasses.dataclass(frozen=True)
class Interval:
    """The field F between t and t + h.

    Attributes:
        field: F(t, y), wrapped; a plain callable is wrapped here.
        t: a number, a 0-d tensor, or (batch,).
        h: a number, a 0-d tensor, or one for each sample, shaped to multiply states, (batch, 1, ..., 1); negative to
            integrate backward in time.
        options: how resolvents are solved.
        guess: a function (interval, c) that guesses the state at t + c h; None leaves it to `resolve`.
        past: (batch, *shape) each, the states at t, t - h, ..., without a graph, for the guess.
        before: the last solve; some solvers start from its Jacobian or history.
        right_end: the fraction at which the field is evaluated for c = 1. It is below 1 for a field that jumps at the
            end of the interval, because its value there belongs to the next interval.
        backwards: whether c runs from t + h to t.
    """

    field: VectorField
    t: Number
    h: Number
    options: SolveOptions = dataclasses.field(default_factory=lambda: solve_options(None, None, None, "raise"))
    guess: "Callable[[Interval, Number], Tensor] | None" = None
    past: tuple[Tensor, ...] = ()
    before: Solution | None = None
    right_end: float = 1.0
    backwards: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", as_vector_field(self.field))

    @property
    def step(self) -> Number:
        """The step in the direction of the interval, h or -h, which multiplies states."""
        return -self.h if self.backwards else self.h

    def reversed(self, *past: Tensor) -> "Interval":
        """The same interval from its end to its start; `past` are the states at its end and beyond."""
        return dataclasses.replace(self, backwards=not self.backwards, past=past, before=None)

    def time(self, c: Number) -> Number:
        """The time at the fraction c: a number, a 0-d tensor, or (batch,)."""
        forward = 1 - c if self.backwards else c
        if not isinstance(forward, Tensor) and forward == 1:
            forward = self.right_end
        return self.t + forward * per_row(self.h)

    def evaluate(self, c: Number, y: Tensor) -> Tensor:
        """F at the fraction c of the interval."""
        t, before = self.time(c), changes_of(y)
        try:
            image = self.field(t, y)
        except RuntimeError as error:
            explain(error, partial(self.field, t), y)
            raise
        if changes_of(y) != before:
            raise change_error()
        return image

    def resolve(
        self,
        c: Number,
        b: Tensor,
        a: Number,
        w0: Tensor | None = None,
        amplification: float = 1.0,
        before: Solution | None = None,
    ) -> Solution:
        """Solves w = b + a h F(t + c h, w).

        Arguments:
            c: the fraction of the interval.
            b: (batch, *shape).
            a: the coefficient in the scheme's table.
            w0: first guess, like b; None takes b.
            amplification: the factor by which the step amplifies an error of w; it tightens the tolerance.
            before: the solve to resume from; None takes that of the last step.
        """
        options, tau = self.options.tightened(amplification, b), per_row(a * self.step)
        return resolve_with(options, self.field.at(self.time(c)), b, tau, w0, before or self.before)

    def resolve_together(
        self,
        nodes: Sequence[float],
        mix: Tensor | Callable[[Sequence[Tensor]], Tensor],
        b: Tensor,
        w0: Tensor | None = None,
        amplification: float = 1.0,
    ) -> Solution:
        """Solves for all stages at once: W = b + h G(W), G(W) a linear combination of the F(t + c_j h, W_j).

        Arguments:
            nodes: the fractions c_j.
            mix: (stages, stages), the coefficients of the F(t + c_j h, W_j), or a function that forms G(W) from their
                list.
            b: (batch, stages, *shape); the stages of a sample are stacked, so that samples stay separate.
            w0: first guess, like b; None takes b.
            amplification: as for `resolve`.
        """
        field, times = self.field, [self.time(c) for c in nodes]
        if isinstance(mix, Tensor) and field.rowwise:
            return self.solve(field.together(times, MatrixMixing(mix), b), b, self.step, w0, amplification)

        def stages(w: Tensor, *own: Tensor) -> Tensor:
            slopes = [field(t, w[:, j]) for j, t in enumerate(own or times)]
            if isinstance(mix, Tensor):
                return MatrixMixing(mix)(torch.stack(slopes, dim=1))
            return mix(slopes)

        # Times per sample are arguments of the function, so that they are indexed together with the rows.
        own = times if field.rowwise and isinstance(times[0], Tensor) and times[0].dim() > 0 else ()
        return self.solve(Function(stages, tuple(own), field.rowwise), b, self.step, w0, amplification)  # type: ignore[arg-type]

    def predict(self, c: Number) -> Tensor | None:
        """The guess of the state at the fraction c, without a graph, or None."""
        if self.guess is None or not self.past:
            return None
        with torch.no_grad():
            return self.guess(self, c)

    @cached_property
    def slope(self) -> Tensor:
        """F at the start of the interval, without a graph; for guesses."""
        with torch.no_grad():
            return self.evaluate(0.0, self.past[0])

    def solve(
        self,
        F: Function,
        b: Tensor,
        tau: Number,
        w0: Tensor | None,
        amplification: float,
        before: Solution | None = None,
    ) -> Solution:
        """Solves w = b + tau F(w), where tau is a multiple of `step`; the arguments are those of `resolve`."""
        options = self.options.tightened(amplification, b)
        return resolve_with(options, F, b, per_row(tau), w0, before or self.before)


def per_row(h: Number) -> Number:
    """(batch,) from one number for each sample, shaped to multiply states; other numbers unchanged."""
    return h.flatten() if isinstance(h, Tensor) and h.dim() > 0 else h
