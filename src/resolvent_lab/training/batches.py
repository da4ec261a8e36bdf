"""Batches of samples in memory. Their order follows from the seed and the epoch alone, so that it can be resumed."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """Samples of a data set.

    Attributes:
        inputs: (n, *shape). For a series its first states.
        targets: (n,) whole numbers for classification, (n, targets) for regression, (n, times, d) for series. Empty,
            (n, 0), if they are not known.
        times: (n, times) for series, else (n, 0).
        numbers: (n,), the place of each sample in its part of the data, for warm starts.
    """

    inputs: Tensor
    targets: Tensor
    times: Tensor
    numbers: Tensor

    def take(self, indices: Tensor) -> "Samples":
        return Samples(*(part[indices] for part in self))

    @property
    def size(self) -> int:
        return len(self.inputs)


def samples(inputs: Tensor, targets: Tensor | None = None, times: Tensor | None = None) -> Samples:
    """Samples, numbered from 0 on."""
    empty = inputs.new_zeros(len(inputs), 0)
    return Samples(
        inputs,
        empty if targets is None else targets,
        empty if times is None else times,
        torch.arange(len(inputs)),
    )


class Progress(NamedTuple):
    """Where a training is: the epoch, and the number of its batches that are done."""

    epoch: int = 0
    batches: int = 0


class Batches:
    """Batches of samples, in an order that depends on the seed and the epoch alone.

    With several ranks each takes its own part of every batch of `ranks * batch_size` samples. Then samples may be
    repeated at the end of an epoch, so that all ranks have equally many.

    Arguments:
        data: the samples.
        batch_size: samples per batch and rank.
        seed: of the order; None keeps the order of the data.
        progress: asked when the first batch is taken. A run that is resumed begins within its epoch.
        rank, ranks: of this process, and how many there are.
    """

    def __init__(
        self,
        data: Samples,
        batch_size: int,
        seed: int | None = None,
        progress: Callable[[], Progress] = Progress,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.data, self.batch_size, self.seed, self.progress = data, batch_size, seed, progress
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        return -(-self.data.size // (self.batch_size * self.ranks))

    def __iter__(self) -> Iterator[Samples]:
        epoch, done = self.progress()
        for indices in self._order(epoch).split(self.batch_size * self.ranks)[done:]:
            yield self.data.take(indices[self.rank :: self.ranks])

    def _order(self, epoch: int) -> Tensor:
        n = self.data.size
        if self.seed is None:
            order = torch.arange(n)
        else:
            order = torch.randperm(n, generator=torch.Generator().manual_seed(mixed(self.seed, epoch)))
        return torch.cat([order, order[: -n % self.ranks]])

    def state_dict(self) -> dict[str, Any]:
        """Nothing: Lightning's own counters say it all. With this method it knows that the batches can be resumed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def mixed(*numbers: int) -> int:
    """A seed from several numbers, such that different numbers give unrelated seeds."""
    seed = 0
    for number in numbers:
        generator = torch.Generator().manual_seed((seed + number) % 2**63)
        seed = int(torch.randint(2**62, (), generator=generator))
    return seed
