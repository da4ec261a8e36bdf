"""Output: finds the steps that cover the requested times, and collects their dense output."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.integrate.method import Method
from resolvent.integrate.samples import AcceptedSteps


@dataclass(frozen=True)
class Covered:
    """Times that accepted steps cover, in any order.

    Attributes:
        row: (points,), the row of the step.
        sample, place: (points,), the sample, and the index of its time.
        at_end: (points,), whether a run ends there.
    """

    row: Tensor
    sample: Tensor
    place: Tensor
    at_end: Tensor


class Outputs:
    """Collects the states at the requested times.

    Arguments:
        times: (count, batch), increasing or decreasing for each sample; may have a graph.
        y0: (batch, n), the states at the first times.
    """

    def __init__(self, times: Tensor, y0: Tensor) -> None:
        self.times = times
        count, batch = times.shape
        by_sample = times.detach().T
        self._direction = torch.where(by_sample[:, -1:] < by_sample[:, :1], -1.0, 1.0).to(by_sample)
        self._keys = (self._direction * by_sample).contiguous()  # increasing for every sample
        self._ahead = self._keys[:, 1].clone()  # the next of them; infinite after the last
        self._written = torch.ones(batch, dtype=torch.long, device=times.device)
        self._places = [torch.arange(batch, device=times.device)]
        self._values = [y0]
        self._shape = (count, batch)

    def reaches(self, sample: Tensor, end: Tensor) -> Tensor:
        """Mask (rows,) of the steps of samples that end at `end` and cover requested times."""
        return self._direction[sample, 0] * end >= self._ahead[sample]

    def cover(self, steps: AcceptedSteps, end: Tensor) -> Covered:
        """The requested times in the intervals of the steps, which end at `end` (rows,). Each is returned once."""
        key = self._direction[steps.sample, 0] * end
        upto = torch.searchsorted(self._keys[steps.sample], key[:, None], right=True)[:, 0]
        begin = self._written[steps.sample]
        self._written[steps.sample] = upto
        rest = self._keys[steps.sample, upto.clamp(max=self._shape[0] - 1)]
        self._ahead[steps.sample] = torch.where(upto < self._shape[0], rest, torch.inf)
        many = upto - begin
        row = torch.repeat_interleave(torch.arange(len(many), device=end.device), many)
        offset = torch.arange(len(row), device=end.device) - (many.cumsum(0) - many)[row]
        place, sample = begin[row] + offset, steps.sample[row]
        return Covered(row, sample, place, steps.ends[row] & (self._keys[sample, place] == key[row]))

    def write(self, sample: Tensor, place: Tensor, values: Tensor) -> None:
        """Stores the values (points, n) at the times `place` of the samples."""
        self._places.append(place * self._shape[1] + sample)
        self._values.append(values)

    def states(self) -> Tensor:
        """(count, batch, n); NaN where nothing was written."""
        places, values = torch.cat(self._places), torch.cat(self._values)
        count, batch = self._shape
        empty = torch.full((count * batch, values.shape[1]), torch.nan, dtype=values.dtype, device=values.device)
        return empty.index_copy(0, places, values).reshape(count, batch, -1)


def interpolate(method: Method, s: Tensor, start: Tensor, end: Tensor, increments: Tensor, at_end: Tensor) -> Tensor:
    """Dense output at fractions of steps.

    Arguments:
        method: whose dense output it is.
        s: (points,), the fractions.
        start, end: (points, n), the states at the ends of the steps.
        increments: (stages, points, n).
        at_end: mask (points,) where the end state itself is returned.
    """
    powers = torch.arange(1, len(method.dense) + 1, dtype=s.dtype, device=s.device)
    weights = (s[:, None] ** powers) @ method.dense.to(s)
    inside = start + torch.einsum("ps,spn->pn", weights.to(start.dtype), increments)
    return torch.where(at_end[:, None], end, inside)
