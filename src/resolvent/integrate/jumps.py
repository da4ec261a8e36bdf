"""Jumps: times at which the field is discontinuous, or the state is changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Change = Callable[[Tensor, Tensor], Tensor]


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
