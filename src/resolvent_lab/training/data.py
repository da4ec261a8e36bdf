"""`Data`: the base of all data modules of `resolvent train`."""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent_lab.lightning import LightningDataModule
from resolvent_lab.training.batches import Batches, Progress, Samples
from resolvent_lab.training.facts import Facts

PARTS = ("train", "validation", "test")


class Data(LightningDataModule, ABC):
    """A data set in memory, split at random into training, validation and test samples.

    A subclass reads the samples. The split depends on `split_seed` and the number of samples alone, not on the seed of
    the training.

    Arguments:
        batch_size: samples per batch.
        validation, test: the fractions of the samples that are held out.
        split_seed: of the split.
    """

    def __init__(self, batch_size: int, validation: float, test: float, split_seed: int) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}.")
        if not (0 < validation < 1 and 0 <= test < 1 and validation + test < 1):
            raise ValueError(
                f"validation must lie in (0, 1), test in [0, 1), and their sum below 1, got {validation} and {test}."
            )
        self.batch_size, self.validation, self.test, self.split_seed = batch_size, validation, test, split_seed
        self.seed = 0
        """Of the order of the training samples; that of the run."""

    @abstractmethod
    def read(self) -> Samples:
        """All samples."""

    @abstractmethod
    def read_inputs(self, file: Path, facts: Facts, targets: bool) -> tuple[Samples, list[Any]]:
        """The samples of another file, of the same form, and a name for each.

        Arguments:
            file: of the same form as that of the training.
            facts: of the training.
            targets: whether targets are needed.
        """

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """The facts of the training samples."""

    @cached_property
    def all(self) -> Samples:
        """All samples, checked."""
        found = self.read()
        if not found.size:
            raise ValueError("the data has no samples.")
        for name, part in (("inputs", found.inputs), ("targets", found.targets), ("times", found.times)):
            if part.is_floating_point() and not bool(part.isfinite().all()):
                raise ValueError(f"the {name} hold nan or inf in {int((~part.isfinite()).sum())} entries.")
        return found

    @cached_property
    def parts(self) -> dict[str, Samples]:
        """The samples of each part, by its name."""
        n = self.all.size
        held, last = max(1, round(self.validation * n)), round(self.test * n)
        if n - held - last < 1:
            raise ValueError(f"{n} samples cannot be split into training, validation and test samples.")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.split_seed))
        pieces = order.split([n - held - last, held, last])
        return {
            name: self.all.take(piece)._replace(numbers=torch.arange(len(piece)))
            for name, piece in zip(PARTS, pieces, strict=True)
        }

    def part(self, name: str) -> Samples:
        """A part by its name; it is not empty."""
        if not self.parts[name].size:
            raise ValueError(f"the data has no {name} samples: set data.init_args.{name} to a fraction above 0.")
        return self.parts[name]

    def train_dataloader(self) -> Batches:
        trainer = self.trainer
        assert trainer is not None

        def progress() -> Progress:
            return Progress(trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready)

        return Batches(
            self.part("train"), self.batch_size, self.seed, progress, trainer.global_rank, trainer.world_size
        )

    def val_dataloader(self) -> Batches:
        return Batches(self.part("validation"), self.batch_size)


def standardization(values: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column of values (n, d). Constant columns get the scale 1."""
    mean = values.double().mean(0)
    scale = values.double().std(0, correction=0)
    scale = torch.where(scale > 1e-12 * (1 + mean.abs()), scale, 1.0)
    return tuple(mean.tolist()), tuple(scale.tolist())
