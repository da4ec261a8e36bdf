"""Events: samples stop where a function of time and state crosses zero."""

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.outputs import interpolate
from resolvent.integrate.run import AcceptedSteps

Event = Callable[[Tensor, Tensor], Tensor]

# Bisections of a step: as many as the bits of a float64 significand.
_BISECTIONS = 53


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
