"""`Samples`: the state of every sample of a run."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
        written: (batch,), how many of the requested times have been passed.
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
    written: Tensor
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
        written=count,
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
