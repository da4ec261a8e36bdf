"""A data module for Lightning that keeps all images on the device of the network."""

from collections.abc import Iterator

import torch
from torch import Tensor

from resolvent_lab.images.split import Split
from resolvent_lab.lightning import LightningDataModule


class ImageModule(LightningDataModule):
    """Batches of the training images, shuffled in each epoch.

    All images are on one device. A few thousand of them need no worker processes, and training copies nothing.

    Arguments:
        split: the data.
        batch_size: images per batch; the last batch may be smaller.
        seed: of the order.
        device: of the images.
    """

    def __init__(self, split: Split, batch_size: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}.")
        self.split = split
        self.train = split.train.to(device)
        self.batch_size = batch_size
        self.random = torch.Generator().manual_seed(seed)

    @property
    def batches(self) -> Split:
        """All data, for measurements."""
        return self.split

    def train_dataloader(self) -> "_Shuffled":
        return _Shuffled(self)


class _Shuffled:
    """The batches of an epoch, in a new order for each epoch."""

    def __init__(self, module: ImageModule) -> None:
        self.module = module

    def __len__(self) -> int:
        return -(-len(self.module.train.labels) // self.module.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        module = self.module
        order = torch.randperm(len(module.train.labels), generator=module.random).to(module.train.labels.device)
        for indices in order.split(module.batch_size):
            yield tuple(module.train.take(indices))  # type: ignore[misc]
