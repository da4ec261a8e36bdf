"""One adaptive run: steps of one method, each sample over its own span, without a graph."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from resolvent.integrate.control import Controller, Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.newton import SLOW, systems
from resolvent.integrate.result import IntegrationStatus as Status
from resolvent.integrate.samples import AcceptedSteps, Interval, Samples, add
from resolvent.integrate.step import Trial, attempt

STIFF = -1
"""The status of a sample that switches from an explicit method to an implicit one."""

# A step of an explicit method of order five looks stiff if h |lambda| exceeds the first number (it is stable up to
# 3.3). 15 stiff steps make a sample stiff; 6 others in a row clear the count.
_STIFF_FROM, _STIFF_STEPS, _RELAXED_STEPS = 2.0, 15, 6
# The factor for a step that failed without an error estimate.
_SHRINK = 0.25
# The smallest step at t = 0.
_TINY = 1e-200


@dataclass
class Run:
    """The steps of one method.

    Attributes:
        method, flow, tolerance: the table, the field, and the norm.
        max_steps: of a sample, accepted or not, in this run and earlier ones.
        min_step: the size below which a step fails; None takes the rounding of the time.
        jump_before, jump_after: whether the field may jump at the start and at the end of the span.
        look: finds events, see `resolvent.integrate.events.Watch.look`; None if there are none.
        wanted: which accepted steps are needed, a function of their samples and ends that returns a mask; None if all
            are.
        detect: whether samples whose steps are limited by stability end with the status `STIFF`.
    """

    method: Method
    flow: Flow
    tolerance: Tolerance
    max_steps: int
    min_step: float | None = None
    jump_before: bool = False
    jump_after: bool = False
    look: Callable[[Method, AcceptedSteps], tuple[Tensor, Tensor, Tensor]] | None = None
    wanted: Callable[[Tensor, Tensor], Tensor] | None = None
    detect: bool = False
    controller: Controller = field(init=False)

    def __post_init__(self) -> None:
        self.controller = Controller(self.method.error_order, lazy=self.method.implicit)
        self.systems = systems(self.flow, self.method)

    def rounds(self, whole: Samples) -> Iterator[AcceptedSteps]:
        """Makes steps until no sample is running, and yields the accepted ones; `whole` is the state of the samples."""
        live, rows = whole, torch.arange(len(whole.t), device=whole.t.device)
        while True:
            running = live.status == Status.RUNNING
            count = int(running.sum())
            if self.flow.field.rowwise and 2 * count <= len(running) and live.t.numel() > 0:
                if live is not whole:
                    whole.put(rows, live)
                rows = rows[running]
                live, running = whole.take(rows), running[running]
            if count == 0:
                return
            steps = self._round(live, running)
            if steps is not None:
                yield steps
            if live is not whole and not bool((live.status == Status.RUNNING).any()):
                whole.put(rows, live)
                return

    def _round(self, live: Samples, running: Tensor) -> AcceptedSteps | None:
        """One attempt of each running sample."""
        interval, ends = self._interval(live, running)
        system = None
        if self.method.implicit:
            system = self.systems.prepare(live, interval.first, self.method.diagonal * interval.h)
        trial = attempt(self.method, self.flow, self.tolerance, live, interval, system, running)
        good = running & trial.solved & (trial.estimate <= 1)
        start, number = live.y, live.accepted
        self._update(live, trial, interval, running, good, ends)
        needed = good
        if self.wanted is not None:
            # The time of a sample is now the end of its step.
            needed = needed & self.wanted(live.index, live.t)
        if not bool(needed.any()):
            return None
        rows = needed.nonzero()[:, 0]
        kept = interval.take(rows)
        increments = torch.stack(trial.increments)[:, rows]
        stop = torch.full_like(kept.t, torch.inf)
        steps = AcceptedSteps(
            live.index[rows], number[rows], kept, ends[rows], start[rows], trial.y[rows], increments, stop
        )
        return steps if self.look is None else self._stop(live, rows, steps)

    def _stop(self, live: Samples, rows: Tensor, steps: AcceptedSteps) -> AcceptedSteps:
        """Stops the samples that reach an event in their steps."""
        assert self.look is not None
        stop, t, y = self.look(self.method, steps)
        met = rows[stop.isfinite()]
        if len(met):
            live.status = live.status.index_fill(0, met, int(Status.STOPPED))
            live.t, live.y = live.t.index_copy(0, rows, t), live.y.index_copy(0, rows, y)
        return replace(steps, stop=stop)

    def _interval(self, live: Samples, running: Tensor) -> tuple[Interval, Tensor]:
        """The next step, and whether it ends at the end of the span. To reach the end it may be 1% longer; to avoid a
        tiny last step it may be half of the rest."""
        remaining = (live.end - live.t).abs()
        ends = live.h * 1.01 >= remaining
        h = torch.where(ends, remaining, torch.where(2 * live.h > remaining, 0.5 * remaining, live.h))
        h = torch.where(running, h * live.direction, 0.0)
        last = torch.where(ends, live.end, live.t + h)
        first = live.t
        if self.jump_before:
            first = torch.where(first == live.start, torch.nextafter(first, live.end), first)
        closed = torch.zeros_like(ends)
        if self.jump_after:
            closed = (live.t + 2 * h - live.end) * live.direction > 0
            inner = torch.nextafter(live.end, live.start)
            last = torch.where(ends, inner, last)
        return Interval(live.t, h, first, last, closed), ends

    def _update(
        self, live: Samples, trial: Trial, interval: Interval, running: Tensor, good: Tensor, ends: Tensor
    ) -> None:
        """Moves the samples where `good`, chooses the next steps, and ends samples that cannot continue."""
        bad, size, estimate = running & ~good, interval.h.abs(), trial.estimate.to(live.h)
        longer = self.controller.accepted(size, estimate, live.error, live.rejected)
        live.h = torch.where(good, longer, live.h)
        live.error = torch.where(good, estimate.clamp(min=1e-4), live.error)
        live.attempts = live.attempts + running
        live.accepted = live.accepted + good
        live.stale = torch.where(good, trial.rate > SLOW, live.stale)
        # Those that failed with an old Jacobian get a new one before the step is shortened.
        retry = bad & ~trial.solved & ~live.fresh
        live.rejected, live.fresh = bad, live.fresh & ~good
        if bool(bad.any()):
            self._reject(live, trial, size, estimate, bad, retry)

        column = good[:, None]
        live.t = torch.where(good, torch.where(ends, live.end, live.t + interval.h), live.t)
        live.y = torch.where(column, trial.y, live.y)
        if self.method.keeps_slope:
            step = torch.where(good, interval.h, 1.0).to(live.y.dtype)[:, None]
            live.slope = torch.where(column, trial.increments[-1] / step, live.slope)
            if self.method.implicit:
                zero = torch.zeros_like(live.y)
                second, third = (add(zero, bend, trial.increments) for bend in self.method.bends)
                live.second = torch.where(column, second / step**2, live.second)
                live.third = torch.where(column, third / step**3, live.third)
        self._end(live, trial, running, good, good & ends)

    def _reject(self, live: Samples, trial: Trial, size: Tensor, estimate: Tensor, bad: Tensor, retry: Tensor) -> None:
        """Shortens the steps of the samples where `bad`, except where they `retry`, and notes why they failed."""
        finite, unsolved = estimate.isfinite(), ~trial.solved
        shorter = self.controller.rejected(size, torch.where(finite, estimate, torch.inf))
        shorter = torch.where(unsolved | ~finite, _SHRINK * size, shorter)
        live.h = torch.where(bad, torch.where(retry, size, shorter), live.h)
        live.stale = live.stale | retry
        cause = torch.where(finite, int(Status.STEP_TOO_SMALL), int(Status.NON_FINITE))
        cause = torch.where(unsolved & finite, int(Status.NOT_SOLVED), cause)
        live.cause = torch.where(bad, cause, live.cause)

    def _end(self, live: Samples, trial: Trial, running: Tensor, good: Tensor, done: Tensor) -> None:
        """Sets the statuses of the samples that are done, failed, or found to be stiff."""
        rounding = (8 * torch.finfo(live.t.dtype).eps * live.t.abs()).clamp(min=_TINY)
        least = rounding if self.min_step is None else self.min_step
        remaining = (live.end - live.t).abs()
        tiny = running & ~done & (live.h <= least) & (live.h < remaining)
        status = torch.where(tiny, torch.where(live.rejected, live.cause, int(Status.STEP_TOO_SMALL)), live.status)
        status = torch.where(running & ~done & (live.attempts >= self.max_steps), int(Status.MAX_STEPS), status)
        if self.detect and trial.stiffness is not None:
            at_limit = good & (trial.stiffness > _STIFF_FROM)
            live.relaxed = torch.where(at_limit, 0, live.relaxed + (good & ~at_limit).long())
            live.stiff = torch.where(live.relaxed >= _RELAXED_STEPS, 0, live.stiff + at_limit.long())
            status = torch.where(running & (live.stiff >= _STIFF_STEPS) & ~done, STIFF, status)
        live.status = torch.where(done, int(Status.DONE), status)
