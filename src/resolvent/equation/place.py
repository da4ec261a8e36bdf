"""`Place`: where an equation stands in a network, for messages."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """The samples of a batch that are solved apart from the others.

    Attributes:
        samples: (count,), their numbers in the batch.
        batch: the number of samples of the batch.
    """

    samples: Tensor
    batch: int

    def take(self, rows: Tensor) -> Self:
        """The samples `rows` of these."""
        return type(self)(self.samples[rows], self.batch)


@dataclass(frozen=True)
class Place:
    """The position of an equation in a network.

    Attributes:
        layer, count: the number of the layer, from 0, and the number of layers.
        t: the time at its start.
        last: the number of the last layer, if several are solved together.
        part: the samples it is solved for, if these are not all of the batch.
    """

    layer: int
    count: int
    t: float | Tensor
    last: int | None = None
    part: Part | None = None

    def __str__(self) -> str:
        times = torch.as_tensor(self.t).detach().flatten()
        t = f"{times[0].item():.4g}" if len(times) == 1 else f"{times.min().item():.4g} to {times.max().item():.4g}"
        last = self.layer if self.last is None else self.last
        layers = f"layers {self.layer + 1} to {last + 1}" if last > self.layer else f"layer {self.layer + 1}"
        return f"{layers} of {self.count} (t = {t})"
