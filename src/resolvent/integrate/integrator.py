"""The integration of a batch: runs of one method between two jumps, and their replays."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resolvent.integrate.control import Tolerance, first_step
from resolvent.integrate.events import Spans, Watch
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.outputs import Covered, Outputs, interpolate
from resolvent.integrate.replay import Replay
from resolvent.integrate.result import IntegrationStatus as Status
from resolvent.integrate.run import STIFF, Run
from resolvent.integrate.samples import AcceptedSteps, Point, Samples, start


@dataclass
class Integrator:
    """Integrates one span after the other, and in a span with one method after the other.

    Attributes:
        methods: in order. A sample that is too stiff for one continues with the next.
        flow, tolerance, outputs: the field, the norm, and the collector of states.
        watch: finds events; None if there are none.
        max_steps, min_step, first: as for `odeint`.
        graph: whether the steps are repeated with a graph.
        checkpoint: whether that graph is recomputed in the backward pass.
        derivatives: how many are exact.
        observe: called with the method and the accepted steps of every round; None if nobody wants to know.
        status, accepted, attempts: (batch,), of all samples so far.
        stops: the samples stopped by an event, and the times of their events, with a graph.
    """

    methods: tuple[Method, ...]
    flow: Flow
    tolerance: Tolerance
    outputs: Outputs
    watch: Watch | None
    max_steps: int
    min_step: float | None
    first: float | None
    graph: bool
    checkpoint: bool
    derivatives: int
    observe: Callable[[Method, AcceptedSteps], None] | None = None
    status: Tensor = field(init=False)
    accepted: Tensor = field(init=False)
    attempts: Tensor = field(init=False)
    stops: list[tuple[Tensor, Tensor]] = field(init=False, default_factory=list)

    def run(self, spans: Spans, y: Tensor) -> Point:
        """Integrates from the states y (batch, n) through all spans; returns the points that the samples reached."""
        batch, device = len(y), y.device
        self.status = torch.zeros(batch, dtype=torch.long, device=device)
        self.accepted, self.attempts = torch.zeros_like(self.status), torch.zeros_like(self.status)
        point = Point(spans.bounds[0].detach(), y, y, None)
        count = len(spans.which)
        for k in range(count):
            left, right = spans.bounds[k], spans.bounds[k + 1]
            point = self._start(point, spans, k, left, right)
            going = (self.status == Status.RUNNING) & (left != right).detach()
            point = self._span(point, right, going, k > 0, k + 1 < count, self.first if k == 0 else None)
        self.status = torch.where(self.status == Status.RUNNING, int(Status.DONE), self.status)
        for sample, t in self.stops:
            point.t = point.t.index_copy(0, sample, t)
        return point

    def _start(self, point: Point, spans: Spans, k: int, left: Tensor, right: Tensor) -> Point:
        """The point at the start of a span, after the jump there, with its slope."""
        shape = (-1, *self.flow.shape)
        reached = self.status == Status.RUNNING
        y = point.y
        with torch.set_grad_enabled(self.graph):
            if spans.changes:
                changed = spans.change(k, left.to(y.dtype), y.reshape(shape)).reshape(y.shape)
                y = torch.where(reached[:, None], changed, y)
            t = torch.where(reached, left.detach(), point.t)
            inside = torch.nextafter(t, right.detach()) if k > 0 else t
            dt = left - left.detach() if self.graph and (left.requires_grad or right.requires_grad) else None
            slope = self.flow(inside if dt is None else inside + dt, y)
        if self.watch is not None:
            self.watch.begin(inside, y)
        return Point(t, y, slope, dt)

    def _span(
        self, point: Point, right: Tensor, going: Tensor, jump_before: bool, jump_after: bool, first: float | None
    ) -> Point:
        """Integrates the samples that are `going` to the right end of the span."""
        end = right.detach()
        y, slope = point.y.detach(), point.slope.detach()
        with torch.no_grad():
            finite = slope.isfinite().all(1)
            self.status = torch.where(going & ~finite, int(Status.NON_FINITE), self.status)
            going = going & finite
            if first is None:
                h = first_step(
                    self.flow, point.t, y, slope, end - point.t, self.tolerance, self.methods[0].tableau.order
                )
                h = h if self.min_step is None else h.clamp(min=2 * self.min_step)
            else:
                h = torch.full_like(point.t, first)
        for method in self.methods:
            if not bool(going.any()):
                break
            samples = start(torch.arange(len(y), device=y.device), point.t, end, y, slope, h)
            samples.status = torch.where(going, int(Status.RUNNING), int(Status.DONE))
            samples.attempts = self.attempts
            run = Run(method, self.flow, self.tolerance, self.max_steps, self.min_step, jump_before, jump_after)
            run.detect = method is not self.methods[-1]
            run.look = None if self.watch is None else self.watch.look
            if not self.graph and self.watch is None and self.observe is None:
                run.wanted = self.outputs.reaches
            rounds = self._rounds(run, samples)
            self.accepted, self.attempts = self.accepted + samples.accepted, samples.attempts
            if self.graph:
                dend = None if point.dt is None else right - end
                replay = Replay(method, self.flow, self.outputs, self.checkpoint, self.derivatives, self.watch)
                point = replay.run(rounds, point, dend)
                self.stops += replay.stops
            else:
                point = Point(samples.t, samples.y, samples.slope, None)
            point.t = samples.t
            failed = going & (samples.status != Status.DONE) & (samples.status != STIFF)
            self.status = torch.where(failed, samples.status, self.status)
            going = going & (samples.status == STIFF)
            y, slope, h, jump_before = samples.y, samples.slope, samples.h, False
        return point

    @torch.no_grad()
    def _rounds(self, run: Run, samples: Samples) -> list[tuple[AcceptedSteps, Covered]]:
        """Makes the steps. Keeps them if they are repeated with a graph, else writes the requested states."""
        kept: list[tuple[AcceptedSteps, Covered]] = []
        for steps in run.rounds(samples):
            if self.observe is not None:
                self.observe(run.method, steps)
            end = torch.where(steps.ends, samples.end[steps.sample], steps.interval.t + steps.interval.h)
            end = torch.where(steps.stop.isfinite(), steps.interval.t + steps.stop * steps.interval.h, end)
            covered = self.outputs.cover(steps, end)
            if self.graph:
                kept.append((steps, covered))
            elif len(covered.row):
                row = covered.row
                s = (self.outputs.times[covered.place, covered.sample] - steps.interval.t[row]) / steps.interval.h[row]
                values = interpolate(
                    run.method, s, steps.start[row], steps.end[row], steps.increments[:, row], covered.at_end
                )
                self.outputs.write(covered.sample, covered.place, values)
        return kept
