"""A data module for Lightning that keeps all images on the device of the network."""

from collections.abc import Iterator

import torch
from torch import Tensor

from resolvent_lab.fitting.epoch_data import EpochData
from resolvent_lab.images.split import Split


class ImageModule(EpochData):
    """Batches of the training images, shuffled in each epoch.

    All images are on one device. A few thousand of them need no worker processes, and training copies nothing.

    Arguments:
        split: the data.
        batch_size: images per batch; the last batch may be smaller.
        seed: of the order.
        device: of the images.
    """

    def __init__(self, split: Split, batch_size: int, seed: int, device: torch.device | str = "cpu") -> None:
        self.random = torch.Generator().manual_seed(seed)
        super().__init__(self.random)
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}.")
        self.split = split
        self.train = split.train.to(device)
        self.batch_size = batch_size

    @property
    def batches(self) -> Split:
        """All data, for measurements."""
        return self.split

    def __len__(self) -> int:
        return -(-len(self.train.labels) // self.batch_size)

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.train.labels), generator=self.random).to(self.train.labels.device)
        for indices in order.split(self.batch_size):
            yield tuple(self.train.take(indices))  # type: ignore[misc]
