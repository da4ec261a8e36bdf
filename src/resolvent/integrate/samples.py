"""The records of a run: the state of every sample, the steps that were accepted, and the point of a replay."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.schemes.tableau import Row


@dataclass
class Samples:
    """The state of a run, with one row per sample. Samples that are done are dropped if the field allows it.

    Attributes:
        index: number of the sample in its batch.
        t, y, slope: (batch,) in float64, (batch, n), (batch, n): time, state, and F there.
        start, end: (batch,), the span of the run.
        direction: (batch,), 1 or -1.
        h: (batch,), the size of the next step.
        error: (batch,), the estimate of the last accepted step, at least 1e-4.
        rejected: (batch,), whether the last step was rejected.
        cause: (batch,), the status of a sample if its step becomes too small.
        status: (batch,), `IntegrationStatus` codes.
        accepted, attempts: (batch,), numbers of steps.
        matrix, matrix_tau: (batch, n, n) and (batch,): tau J, and its tau.
        stale, fresh: (batch,), whether J must be recomputed, and whether it belongs to the current state.
        contraction: (batch,), theta / (1 - theta) of the last Newton iteration.
        second, third: (batch, n), derivatives of the solution at t, from the last step of an implicit method.
        stiff, relaxed: (batch,), counts of steps that look stiff, and that do not.
    """

    index: Tensor
    t: Tensor
    y: Tensor
    slope: Tensor
    start: Tensor
    end: Tensor
    direction: Tensor
    h: Tensor
    error: Tensor
    rejected: Tensor
    cause: Tensor
    status: Tensor
    accepted: Tensor
    attempts: Tensor
    matrix: Tensor | None
    matrix_tau: Tensor
    stale: Tensor
    fresh: Tensor
    contraction: Tensor
    second: Tensor
    third: Tensor
    stiff: Tensor
    relaxed: Tensor

    def take(self, rows: Tensor) -> "Samples":
        """Only the samples `rows`."""
        rest: dict[str, Any] = {name: None if value is None else value[rows] for name, value in self.items()}
        return dataclasses.replace(self, **rest)

    def put(self, rows: Tensor, some: "Samples") -> None:
        """Writes back the rows returned by `take`."""
        for name, value in some.items():
            if value is not None:
                whole = getattr(self, name)
                whole = value.new_zeros(len(self.t), *value.shape[1:]) if whole is None else whole
                setattr(self, name, whole.index_copy(0, rows, value))

    def items(self) -> list[tuple[str, Tensor | None]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]


def start(index: Tensor, t: Tensor, end: Tensor, y: Tensor, slope: Tensor, h: Tensor) -> Samples:
    """The samples at the start of a run; the arguments are the attributes."""
    none, count = torch.zeros_like(index, dtype=torch.bool), torch.zeros_like(index)
    direction = torch.where(end < t, -1.0, 1.0).to(t)
    return Samples(
        index=index,
        t=t.clone(),
        y=y,
        slope=slope,
        start=t,
        end=end,
        direction=direction,
        h=h,
        error=torch.full_like(t, 1e-4),
        rejected=none,
        cause=count,
        status=count,
        accepted=count,
        attempts=count,
        matrix=None,
        matrix_tau=torch.zeros_like(t),
        stale=~none,
        fresh=none,
        contraction=torch.ones_like(y[:, 0]),
        second=torch.zeros_like(y),
        third=torch.zeros_like(y),
        stiff=count,
        relaxed=count,
    )


@dataclass(frozen=True)
class Interval:
    """The interval of a step of each sample.

    Attributes:
        t, h: (batch,), its start and its signed length.
        first, last: (batch,), the times at which the field is evaluated for the two ends. They differ from the ends by
            one rounding if the field jumps there.
        closed: (batch,), whether the field jumps at the end. No stage is then evaluated beyond it.
    """

    t: Tensor
    h: Tensor
    first: Tensor
    last: Tensor
    closed: Tensor

    def take(self, rows: slice | Tensor) -> "Interval":
        """Only the samples `rows`."""
        return Interval(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def time(self, c: float) -> Tensor:
        """The time at the fraction c."""
        if c == 0:
            return self.first
        if c == 1:
            return self.last
        inside = self.t + c * self.h
        return torch.where(self.closed, self.last, inside) if c > 1 else inside


@dataclass(frozen=True)
class AcceptedSteps:
    """The accepted steps of a round, with one row per sample that made one.

    Attributes:
        sample: (rows,), numbers in the batch.
        number: (rows,), the number of earlier steps of the sample in this run.
        interval: of the step.
        ends: (rows,), whether the step ends at the end of the span.
        start, end: (rows, n), the states at its ends.
        increments: (stages, rows, n), h times the slopes of the stages.
        stop: (rows,), the fraction of the step at which an event stops the sample; infinite if none does.
    """

    sample: Tensor
    number: Tensor
    interval: Interval
    ends: Tensor
    start: Tensor
    end: Tensor
    increments: Tensor
    stop: Tensor


@dataclass
class Point:
    """The current point of a replay, with a graph.

    Attributes:
        t: (batch,), the time.
        y, slope: (batch, n), the state and F there.
        dt: (batch,), zero, with the derivative of the time; None if the times have none.
    """

    t: Tensor
    y: Tensor
    slope: Tensor
    dt: Tensor | None

    def take(self, rows: slice | Tensor) -> "Point":
        """Only the samples `rows`."""
        return Point(self.t[rows], self.y[rows], self.slope[rows], None if self.dt is None else self.dt[rows])


def from_last_step(c: float, h: Tensor, samples: Samples) -> Tensor:
    """The increment at the fraction c of a step, from the derivatives of the last step at its end."""
    ahead = c * h
    return h * (samples.slope + ahead * (samples.second + (0.5 * ahead) * samples.third))


def add(x: Tensor, weights: Row, terms: list[Tensor]) -> Tensor:
    """x plus the weighted sum of the terms, in this order, so that the rounding of a sample does not depend on the
    others."""
    total = x
    for weight, term in zip(weights, terms, strict=True):
        if weight != 0:
            total = torch.add(total, term, alpha=weight)
    return total
