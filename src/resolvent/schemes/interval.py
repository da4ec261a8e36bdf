"""One interval of time, as a scheme sees it: the field on it, and the resolvents of the field."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from resolvent.core.problem import Coupled, Rowwise
from resolvent.core.solution import Solution
from resolvent.schemes.solving import Solving
from resolvent.solvers.resolve import resolve

Number = float | Tensor
Field = Callable[[Number, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Interval:
    """The field F between t and t + h.

    Attributes:
        field: F(t, y). Its attributes `rowwise` and `linear_part` are read where it has them.
        t: a number, a tensor of no dimension, or (batch,).
        h: a number or a tensor of no dimension; negative to go back in time.
        solving: how resolvents are solved.
        guess: a function (interval, c) that guesses the state at t + c h; None leaves it to `resolve`.
        past: (batch, *shape) each, the states at t, t - h, ..., without a graph, for the guess.
        before: the last solve, for solvers that can start from what it learned.
        right_end: the fraction at which the field is read for c = 1. Anything but 1 is for a field that jumps at the
            end of the interval, and whose value there belongs to the next one.
        backwards: whether c runs from t + h to t.
    """

    field: Field
    t: Number
    h: Number
    solving: Solving = dataclasses.field(default_factory=Solving)
    guess: "Callable[[Interval, Number], Tensor] | None" = None
    past: tuple[Tensor, ...] = ()
    before: Solution | None = None
    right_end: float = 1.0
    backwards: bool = False

    @property
    def length(self) -> Number:
        """The step in the direction of the interval: h or -h."""
        return -self.h if self.backwards else self.h

    def reversed(self, *past: Tensor) -> "Interval":
        """The same interval from its end to its start, where `past` are the states at its end and beyond."""
        return dataclasses.replace(self, backwards=not self.backwards, past=past, before=None)

    def time(self, c: Number) -> Number:
        """The time at the fraction c: a number, a tensor of no dimension, or (batch,)."""
        forward = 1 - c if self.backwards else c
        if not isinstance(forward, Tensor) and forward == 1:
            forward = self.right_end
        return self.t + forward * self.h

    def evaluate(self, c: Number, y: Tensor) -> Tensor:
        """F at the fraction c of the interval."""
        return self.field(self.time(c), y)

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
            amplification: how much the step enlarges an error of w; the tolerance is tightened by it.
            before: the solve to learn from; None takes that of the last step.
        """
        field = self.field
        F = self._bind(lambda w, t: field(t, w), [self.time(c)], getattr(field, "linear_part", None), _jacobian(field))
        return self.solve(F, b, a * self.length, w0, amplification, before)

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
            b: (batch, stages, *shape); stages are stacked inside of a sample, so that samples stay apart.
            w0: first guess, like b; None takes b.
            amplification: as for `resolve`.
        """
        field, times = self.field, [self.time(c) for c in nodes]
        if isinstance(mix, Tensor) and getattr(field, "rowwise", False):
            return self.solve(couple(field, times, mix, b), b, self.length, w0, amplification)

        def stages(w: Tensor, *times: Number) -> Tensor:
            slopes = [field(t, w[:, j]) for j, t in enumerate(times)]
            if isinstance(mix, Tensor):
                return torch.einsum("ij,bj...->bi...", mix, torch.stack(slopes, dim=1))
            return mix(slopes)

        return self.solve(self._bind(stages, times, None), b, self.length, w0, amplification)

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

    def _bind(
        self,
        function: Callable[..., Tensor],
        times: Sequence[Number],
        linear_part: Number | None,
        jacobian: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> Callable[[Tensor], Tensor]:
        """function(w, *times) as a function of w, of which the solvers may leave out rows if the field allows it."""
        if not getattr(self.field, "rowwise", False):
            return _WholeBatch(function, times, linear_part)
        if isinstance(times[0], Tensor) and times[0].dim() > 0:
            return Rowwise(function, *times, linear_part=linear_part, jacobian=jacobian)  # type: ignore[arg-type]
        bound = None if jacobian is None else lambda w: jacobian(w, *times)
        return Rowwise(lambda w: function(w, *times), linear_part=linear_part, jacobian=bound)

    def solve(
        self,
        F: Callable[[Tensor], Tensor],
        b: Tensor,
        tau: Number,
        w0: Tensor | None,
        amplification: float,
        before: Solution | None = None,
    ) -> Solution:
        """Solves w = b + tau F(w); the arguments are those of `resolve`."""
        solving = self.solving
        return resolve(
            F,
            b,
            tau,
            w0=w0,
            solver=solving.solver,
            stopping=solving.stopping_for(b, amplification),
            adjoint=solving.adjoint,
            on_failure=solving.on_failure,
            reuse=before or self.before,
        )


def couple(field: Field, times: Sequence[Number], mix: Tensor, like: Tensor) -> Coupled:
    """W to the sums over j of mix_ij F(t_j, W_j), for W like (batch, stages, *shape) and a field of single rows."""
    jacobian = _jacobian(field)
    if getattr(field, "autonomous", False):
        bound = None if jacobian is None else lambda w: jacobian(w, times[0])
        return Coupled(lambda w: field(times[0], w), mix, jacobian=bound)
    return Coupled(lambda w, t: field(t, w), mix, time_columns(times, like), jacobian=jacobian)


def time_columns(times: Sequence[Number], like: Tensor) -> Tensor:
    """The times of all stages of all samples, (batch, stages)."""
    columns = [torch.as_tensor(t, dtype=like.dtype, device=like.device).expand(len(like)) for t in times]
    return torch.stack(columns, dim=1)


def _jacobian(field: Field) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """F and its Jacobian as a function of (w, t), where the field knows them together."""
    known = getattr(field, "with_jacobian", None)
    return None if known is None else lambda w, t: known(t, w)


class _WholeBatch:
    """A function that has to see all rows, with the field's linear part."""

    def __init__(self, function: Callable[..., Tensor], times: Sequence[Number], linear_part: Number | None) -> None:
        self.function = function
        self.times = times
        self.linear_part = linear_part

    def __call__(self, w: Tensor) -> Tensor:
        return self.function(w, *self.times)
