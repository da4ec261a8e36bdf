"""Jumps, times at which the field or the state is discontinuous, and events, states at which samples stop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.outputs import interpolate
from resolvent.integrate.samples import AcceptedSteps

Change = Callable[[Tensor, Tensor], Tensor]
Event = Callable[[Tensor, Tensor], Tensor]

# Bisections of a step: as many as the bits of a float64 significand.
_BISECTIONS = 53


@dataclass(frozen=True)
class Jumps:
    """Times at which a step ends exactly, and the change of the state there.

    Arguments:
        times: (count,), or (count, batch) for one set per sample, in any order; may require a gradient. Times outside
            the interval from the first time (included) to the last one (excluded) have no effect: pad with infinity for
            samples with fewer jumps.
        change: a function of the time (batch,) and the states (batch, *shape) that returns the states after the jump,
            or one function per time; None if only the field jumps. It is called with the whole batch; its results for
            samples that are not at this jump are ignored.

    At the time of a jump the trajectory has the state before the change. A step never evaluates the field beyond the
    jump at its end: a stage at the time of the jump is evaluated one rounding before it.
    """

    times: Any
    change: Change | Sequence[Change] | None = None

    def __post_init__(self) -> None:
        many = isinstance(self.change, Sequence)
        changes = self.change if isinstance(self.change, Sequence) else [self.change]
        if any(change is not None and not callable(change) for change in changes):
            raise ValueError(f"change must be a function (t, y), a list of them, or None, got {self.change!r}.")
        if many and len(changes) != len(self.times):
            raise ValueError(
                f"change must have one function for each of the {len(self.times)} times, got {len(changes)}."
            )


@dataclass(frozen=True)
class Spans:
    """The spans between jumps.

    Attributes:
        bounds: (spans + 1, batch), in the direction of time, with a graph. A sample with fewer jumps ends with spans of
            length zero.
        which: (spans, batch), the number of the jump at the start of the span; -1 if there is none.
        changes: one function per jump.
    """

    bounds: Tensor
    which: Tensor
    changes: Sequence[Change | None]

    def change(self, span: int, t: Tensor, y: Tensor) -> Tensor:
        """The states (batch, *shape) after the jumps at the start of a span."""
        for j in self.which[span].unique().tolist():
            change = self.changes[j] if j >= 0 else None
            if change is None:
                continue
            changed = change(t, y)
            if not isinstance(changed, Tensor) or changed.shape != y.shape or changed.dtype != y.dtype:
                got = (
                    f"{tuple(changed.shape)}, {changed.dtype}"
                    if isinstance(changed, Tensor)
                    else type(changed).__name__
                )
                raise ValueError(
                    f"change must return states like its argument, {tuple(y.shape)}, {y.dtype}; got {got}."
                )
            here = (self.which[span] == j).reshape(-1, *(1,) * (y.dim() - 1))
            y = torch.where(here, changed, y)
        return y


def spans(times: Tensor, jumps: object) -> Spans:
    """The spans between the first and the last of the times (count, batch)."""
    first, last = times[0], times[-1]
    none = torch.full((1, times.shape[1]), -1, device=times.device)
    if jumps is None:
        return Spans(torch.stack([first, last]), none, ())
    given = jumps if isinstance(jumps, Jumps) else Jumps(jumps)
    at = torch.as_tensor(given.times, device=times.device).double()
    if at.dim() not in (1, 2) or (at.dim() == 2 and at.shape[1] != times.shape[1]):
        raise ValueError(
            f"jumps must be times (count,) or (count, batch) with a batch of {times.shape[1]}, got shape "
            f"{tuple(at.shape)}."
        )
    if bool(at.isnan().any()):
        raise ValueError("jumps must be numbers; pad with infinity where a sample has fewer of them, not with NaN.")
    at = at if at.dim() == 2 else at[:, None].expand(-1, times.shape[1])
    direction = (last - first).detach().sign()
    inside = ((at - first) * direction >= 0) & ((at - last) * direction < 0)
    key = torch.where(inside, (at * direction).detach(), torch.inf)
    key, which = key.sort(dim=0, stable=True)
    count = int(inside.sum(0).max()) if len(at) else 0
    valid = key[:count].isfinite()
    ordered = torch.where(valid, at.gather(0, which[:count]), last)
    which = torch.where(valid, which[:count], -1)
    changes = given.change if isinstance(given.change, Sequence) else [given.change] * len(at)
    return Spans(torch.cat([first[None], ordered, last[None]]), torch.cat([none, which]), changes)


class Watch:
    """Finds the first zero of g(t, y) in the steps of every sample.

    Arguments:
        event: g, called like the field; returns (batch,).
        flow: the field. If it is not `rowwise`, the event too is called with the whole batch.
    """

    def __init__(self, event: Event, flow: Flow) -> None:
        self.event, self.flow = event, flow

    def begin(self, t: Tensor, y: Tensor) -> None:
        """Records the times (batch,) and states (batch, n) of all samples, at the start and after a jump."""
        self.t, self.y = t.detach(), y.detach()
        with torch.no_grad():
            self.sign = self.value(torch.arange(len(t), device=t.device), self.t, self.y).sign()

    def value(self, sample: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """g for some samples, (rows,)."""
        whole = not self.flow.field.rowwise
        if whole:
            t, y = self.t.index_copy(0, sample, t), self.y.index_copy(0, sample, y)
        found = self.event(t.to(y.dtype), y.reshape(-1, *self.flow.shape))
        if not isinstance(found, Tensor) or found.shape != t.shape:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"event must return a number for each sample, {tuple(t.shape)}, got {got}.")
        return found[sample] if whole else found

    def look(self, method: Method, steps: AcceptedSteps) -> tuple[Tensor, Tensor, Tensor]:
        """For each step, the fraction at which g is zero, infinite if there is none, and the time and the state there,
        or at the end of the step."""
        sample, h = steps.sample, steps.interval.h
        t, y = steps.interval.t + h, steps.end
        sign = self.value(sample, t, y).sign()
        before = self.sign[sample]
        passed = (before != 0) & (sign != before)
        stop = torch.full_like(h, torch.inf)
        if bool(passed.any()):
            rows = passed.nonzero()[:, 0]
            s = self._bisect(method, steps, rows, before[rows])
            stop = stop.index_copy(0, rows, s)
            t = t.index_copy(0, rows, steps.interval.t[rows] + s * h[rows])
            y = y.index_copy(0, rows, self.inside(method, steps, rows, s))
        self.sign = self.sign.index_copy(0, sample, sign)
        self.t, self.y = self.t.index_copy(0, sample, t), self.y.index_copy(0, sample, y)
        return stop, t, y

    def _bisect(self, method: Method, steps: AcceptedSteps, rows: Tensor, before: Tensor) -> Tensor:
        """The fractions at which the sign of g changes."""
        low, high = torch.zeros_like(steps.interval.h[rows]), torch.ones_like(steps.interval.h[rows])
        for _ in range(_BISECTIONS):
            s = 0.5 * (low + high)
            t = steps.interval.t[rows] + s * steps.interval.h[rows]
            ahead = self.value(steps.sample[rows], t, self.inside(method, steps, rows, s)).sign() == before
            low, high = torch.where(ahead, s, low), torch.where(ahead, high, s)
        return high

    def inside(self, method: Method, steps: AcceptedSteps, rows: Tensor, s: Tensor) -> Tensor:
        """Dense output of some of the steps at fractions s."""
        never = torch.zeros_like(rows, dtype=torch.bool)
        return interpolate(method, s, steps.start[rows], steps.end[rows], steps.increments[:, rows], never)


def attach(watch: Watch, method: Method, steps: AcceptedSteps, stop: Tensor, shift: Tensor | None) -> Tensor:
    """The fractions at which g is zero, differentiable by one Newton step with a graph.

    Arguments:
        watch: provides g.
        method: of the steps.
        steps: with a graph.
        stop: (rows,), the fractions.
        shift: (rows,), zero, with the derivative of the time at the start; None if it has none.
    """
    rows = torch.arange(len(stop), device=stop.device)
    interval = steps.interval

    def g(s: Tensor, h: Tensor, these: AcceptedSteps) -> Tensor:
        t = interval.t + s * h if shift is None else interval.t + shift + s * h
        return watch.value(steps.sample, t, watch.inside(method, these, rows, s))

    with torch.enable_grad():
        s = stop.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(g(s, interval.h.detach(), detached(steps)).sum(), s)
    value = g(stop, interval.h, steps)
    return stop - (value - value.detach()) / slope.to(value.dtype)


def detached(steps: AcceptedSteps) -> AcceptedSteps:
    start, end, increments = (x.detach() for x in (steps.start, steps.end, steps.increments))
    return AcceptedSteps(steps.sample, steps.number, steps.interval, steps.ends, start, end, increments, steps.stop)
