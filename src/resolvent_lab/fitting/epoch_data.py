"""`EpochData`: data whose random numbers can be resumed."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from resolvent_lab.lightning import LightningDataModule


class EpochData(LightningDataModule, ABC):
    """Training data, for a run that goes on at the start of an epoch.

    Its state is that of all random numbers before the epoch. A run that goes on draws the same order from it, and the
    same noise and probes behind it. Lightning puts the state into its checkpoints.

    Arguments:
        generators: that `epoch` draws from, beside torch's own.
    """

    def __init__(self, *generators: torch.Generator) -> None:
        super().__init__()
        self._generators = generators
        self._before: dict[str, Any] = {}
        self._restored: dict[str, Any] | None = None

    @abstractmethod
    def epoch(self) -> Iterable[Any]:
        """The batches of one epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of batches of an epoch."""

    def train_dataloader(self) -> "_Loader":
        return _Loader(self)

    def begin(self) -> None:
        """Remembers the random numbers, or restores them, at the start of an epoch."""
        if self._restored is not None:
            self._restore(self._restored)
            self._restored = None
        self._before = {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
            "own": [generator.get_state() for generator in self._generators],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_initialized() and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
        for generator, each in zip(self._generators, state["own"], strict=True):
            generator.set_state(each)

    def state_dict(self) -> dict[str, Any]:
        """The random numbers before this epoch."""
        return self._before

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next epoch begins with these random numbers."""
        self._restored = state_dict


class _Loader:
    def __init__(self, data: EpochData) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        """Nothing happens before the first batch is taken: Lightning may make an iterator and not use it."""
        self.data.begin()
        yield from self.data.epoch()
