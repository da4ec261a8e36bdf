"""Replays: repeat the accepted steps of a run with a graph, the n-th steps of all samples together."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from resolvent.integrate.events import Watch, attach
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.outputs import Covered, Outputs, interpolate
from resolvent.integrate.samples import AcceptedSteps, Interval, Point
from resolvent.integrate.step import repeat_step


@dataclass
class Packed:
    """All accepted steps of a run in replay order: the first steps of all samples, then the second steps, and so on.

    Attributes:
        steps: as one record.
        covered: the times they cover, as one record.
        sizes: the number of samples with a first step, a second step, and so on.
    """

    steps: AcceptedSteps
    covered: Covered
    sizes: list[int]


def pack(rounds: list[tuple[AcceptedSteps, Covered]], rank: Tensor, sizes: list[int]) -> Packed:
    """The rounds as one record; in each group of steps the samples are sorted by their rank (batch,)."""
    steps = [steps for steps, _ in rounds]
    sample, number = (torch.cat([getattr(s, name) for s in steps]) for name in ("sample", "number"))
    order = (number * len(rank) + rank[sample]).argsort()
    interval = Interval(*(torch.cat([getattr(s.interval, f.name) for s in steps])[order] for f in fields(Interval)))
    rest = {name: torch.cat([getattr(s, name) for s in steps])[order] for name in ("ends", "start", "end", "stop")}
    increments = torch.cat([s.increments for s in steps], dim=1)[:, order]
    together = AcceptedSteps(sample[order], number[order], interval, increments=increments, **rest)

    before, rows = 0, []
    for one, covered in rounds:
        rows.append(covered.row + before)
        before += len(one.sample)
    row = order.argsort()[torch.cat(rows)]
    by_row = row.argsort(stable=True)
    points = [torch.cat([getattr(c, name) for _, c in rounds])[by_row] for name in ("sample", "place", "at_end")]
    return Packed(together, Covered(row[by_row], *points), sizes)


@dataclass(frozen=True)
class Group:
    """The steps of one group, repeated with a graph.

    Attributes:
        rows: of the packed steps.
        sample: (rows,), the samples of the steps if the tensors below are those of the whole batch; else None.
        interval, dh: of the steps; dh (batch,) is zero, with the derivative of h, or None.
        point: their start.
        increments, end: (stages, batch, n) and (batch, n), the result.
    """

    rows: slice
    sample: Tensor | None
    interval: Interval
    dh: Tensor | None
    point: Point
    increments: Tensor
    end: Tensor


class Replay:
    """Repeats the steps of a run.

    Arguments:
        method, flow: of the run.
        outputs: collects the states at the requested times.
        checkpoint: whether the graph of a step is recomputed in the backward pass.
        derivatives: how many are exact.
        watch: provides the event at which samples stop, if there is one.

    Attributes:
        stops: the samples stopped by an event, and the times of their events, with a graph.
    """

    def __init__(
        self,
        method: Method,
        flow: Flow,
        outputs: Outputs,
        checkpoint: bool,
        derivatives: int = 1,
        watch: Watch | None = None,
    ) -> None:
        self.method, self.flow, self.outputs, self.checkpoint = method, flow, outputs, checkpoint
        self.derivatives, self.watch = derivatives, watch
        self.stops: list[tuple[Tensor, Tensor]] = []

    def run(self, rounds: list[tuple[AcceptedSteps, Covered]], point: Point, dend: Tensor | None) -> Point:
        """The point at the end of the run.

        Arguments:
            rounds: the accepted steps, and the times they cover.
            point: the start of the run, for the whole batch.
            dend: (batch,), zero, with the derivative of the end of the span.
        """
        if not rounds:
            return point
        batch = len(point.y)
        counts = torch.cat([steps.sample for steps, _ in rounds]).bincount(minlength=batch)
        order = counts.argsort(descending=True, stable=True)
        packed = pack(rounds, order.argsort(), [int((counts > j).sum()) for j in range(int(counts.max()))])
        if self.flow.field.rowwise:
            return self._by_prefix(packed, point, dend, order)
        return self._whole_batch(packed, point, dend)

    def _by_prefix(self, packed: Packed, point: Point, dend: Tensor | None, order: Tensor) -> Point:
        """Repeats the steps with samples sorted by their number of steps: those that continue come first."""
        point = point.take(order)
        dend = None if dend is None else dend[order]
        finished: list[Point] = []
        before, size = 0, len(order)
        for m in packed.sizes:
            finished.append(point.take(slice(m, size)))
            point, size = point.take(slice(0, m)), m
            rows = slice(before, before + m)
            point = self._step(packed, rows, point, None if dend is None else dend[:m])
            before += m
        parts = [point, *reversed(finished)]
        dt = None if point.dt is None else torch.cat([p.dt for p in parts if p.dt is not None])
        t, y, slope = (torch.cat([getattr(p, name) for p in parts]) for name in ("t", "y", "slope"))
        return Point(t, y, slope, dt).take(order.argsort())

    def _whole_batch(self, packed: Packed, point: Point, dend: Tensor | None) -> Point:
        """Repeats the steps with the whole batch: samples without a step in a group make one of length zero."""
        before = 0
        for m in packed.sizes:
            rows = slice(before, before + m)
            sample = packed.steps.sample[rows]
            point = self._step(packed, rows, point, dend, sample)
            before += m
        return point

    def _step(
        self, packed: Packed, rows: slice, point: Point, dend: Tensor | None, sample: Tensor | None = None
    ) -> Point:
        """One group of steps. If `sample` is given, the point is that of the whole batch."""
        steps = packed.steps
        interval = steps.interval.take(rows)
        ends, known = steps.ends[rows], steps.increments[:, rows]
        if sample is not None:
            interval, ends, known = _spread(interval, ends, known, sample, point.t)
        active = interval.h != 0
        dh = None
        if point.dt is not None and dend is not None:
            dh = torch.where(ends & active, dend - point.dt, 0.0)

        def make(y: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
            here = Point(point.t, y, slope, point.dt)
            return repeat_step(self.method, self.flow, interval, dh, here, known, self.derivatives)

        if self.checkpoint:
            from torch.utils.checkpoint import checkpoint

            increments, end = checkpoint(make, point.y, point.slope, use_reentrant=False)
        else:
            increments, end = make(point.y, point.slope)
        group = Group(rows, sample, interval, dh, point, increments, end)
        self._write(packed.covered, group)
        h = torch.where(active, interval.h, 1.0)
        h = (h if dh is None else h + dh).to(end.dtype)
        slope = torch.where(active[:, None], increments[-1] / h[:, None], point.slope)
        if not self.method.keeps_slope:
            slope = point.slope
        end = torch.where(active[:, None], end, point.y)
        if self.watch is not None:
            end = self._stop(self.watch, steps, replace(group, end=end))
        return Point(interval.t + interval.h, end, slope, point.dt if point.dt is None or dh is None else point.dt + dh)

    def _stop(self, watch: Watch, steps: AcceptedSteps, group: Group) -> Tensor:
        """The ends of a group of steps; for samples that stop at an event, the state there."""
        met = steps.stop[group.rows].isfinite().nonzero()[:, 0]
        if not len(met):
            return group.end
        owner, stop = steps.sample[group.rows][met], steps.stop[group.rows][met]
        at = met if group.sample is None else owner
        here = group.interval.take(at)
        if group.dh is not None:
            here = replace(here, h=here.h + group.dh[at])
        dt = None if group.point.dt is None else group.point.dt[at]
        never = torch.zeros_like(met, dtype=torch.bool)
        some = AcceptedSteps(owner, owner, here, never, group.point.y[at], group.end[at], group.increments[:, at], stop)
        s = attach(watch, self.method, some, stop, dt)
        self.stops.append((owner, here.t + s * here.h if dt is None else here.t + dt + s * here.h))
        state = watch.inside(self.method, some, torch.arange(len(at), device=at.device), s)
        return group.end.index_copy(0, at, state)

    def _write(self, covered: Covered, group: Group) -> None:
        """Writes the states at the times that the group covers."""
        bounds = torch.tensor([group.rows.start, group.rows.stop], device=group.end.device)
        low, high = torch.searchsorted(covered.row, bounds).tolist()
        if low == high:
            return
        some = slice(low, high)
        owner, place = covered.sample[some], covered.place[some]
        row = owner if group.sample is not None else covered.row[some] - group.rows.start
        t, h = group.interval.t, group.interval.h
        if group.point.dt is not None and group.dh is not None:
            t, h = t + group.point.dt, h + group.dh
        s = (self.outputs.times[place, owner] - t[row]) / h[row]
        start, end, increments = group.point.y[row], group.end[row], group.increments[:, row]
        self.outputs.write(owner, place, interpolate(self.method, s, start, end, increments, covered.at_end[some]))


def _spread(
    interval: Interval, ends: Tensor, known: Tensor, sample: Tensor, t: Tensor
) -> tuple[Interval, Tensor, Tensor]:
    """The records of some samples, extended to the whole batch with steps of length zero at t (batch,)."""

    def whole(values: Tensor, rest: Tensor) -> Tensor:
        return rest.index_copy(0, sample, values)

    none = torch.zeros_like(t, dtype=torch.bool)
    spread = Interval(
        t=whole(interval.t, t),
        h=whole(interval.h, torch.zeros_like(t)),
        first=whole(interval.first, t),
        last=whole(interval.last, t),
        closed=whole(interval.closed, none),
    )
    slopes = known.new_zeros(len(known), len(t), known.shape[2]).index_copy(1, sample, known)
    return spread, whole(ends, none), slopes
