"""Checkpoints: written without a moment in which there is none, and read without running what is in them."""

import os
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent_lab import atomic
from resolvent_lab.command import CommandError
from resolvent_lab.lightning import Callback, CheckpointIO, LightningModule, Trainer

LAST, BEST = "last.ckpt", "best.ckpt"

ENTRY = "resolvent"
"""Our entry of a checkpoint: what Lightning does not know of."""


class SafeCheckpoints(CheckpointIO):
    """How Lightning writes and reads checkpoints: complete or not at all, and tensors and plain values only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        try:
            atomic.write(path, lambda file: torch.save(checkpoint, file))
        except (OSError, RuntimeError) as error:  # torch turns an OSError of the file into a RuntimeError
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            good = f"The last good one, {path}, is still there." if path.exists() else "There is none yet."
            raise CommandError(f"cannot write the checkpoint {path}: {reason}. {good}") from None

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        found = read_checkpoint(Path(path))
        for state in found.get("callbacks", {}).values():
            if isinstance(state, dict) and "best_k_models" in state:
                _move(state, os.path.realpath(Path(path).parent))
        return found

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _move(state: dict[str, Any], folder: str) -> None:
    """Changes the paths in the state of a ModelCheckpoint to a folder: the run may have been moved since."""

    def moved(path: str) -> str:
        return str(Path(folder) / Path(path).name) if path else path

    state["dirpath"] = folder
    state["best_k_models"] = {moved(path): score for path, score in state["best_k_models"].items()}
    for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
        state[key] = moved(state.get(key, ""))


class UnusableCheckpointError(ValueError):
    """A checkpoint is damaged, or that of something else."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint of ours. Raises an error that says what is wrong with any other file."""
    if not path.is_file():
        raise UnusableCheckpointError(f"there is no checkpoint {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise UnusableCheckpointError(f"the checkpoint {path} is damaged: wrong checksum of {broken}.")
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UnusableCheckpointError(
            f"{path} holds more than tensors and plain values. It is not loaded, because it could run code."
        ) from None
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        raise UnusableCheckpointError(f"the checkpoint {path} is damaged: {str(error).splitlines()[0]}.") from None
    if not isinstance(found, dict) or ENTRY not in found or "state_dict" not in found:
        raise UnusableCheckpointError(f"{path} is no checkpoint of resolvent.")
    return found


def load_state(module: nn.Module, state: dict[str, Tensor], source: Path) -> None:
    """Loads weights, and says in one line what does not fit."""
    own = module.state_dict()
    missing, foreign = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    shapes = [name for name in own if name in state and own[name].shape != state[name].shape]
    if missing or foreign or shapes:
        parts = {"missing": missing, "unknown": foreign, "of another shape": shapes}
        told = "; ".join(f"{key}: {', '.join(names[:3])}" for key, names in parts.items() if names)
        raise UnusableCheckpointError(f"the weights in {source} are those of another network ({told}).")
    module.load_state_dict(state)


class LastCheckpoint(Callback):
    """Writes last.ckpt before the first batch of each epoch but the first, and every few steps if asked.

    Lightning's ModelCheckpoint saves after a batch or an epoch, before the schedulers step and with a part of the
    counters raised, and a run resumed from there differs. Before a batch nothing is pending.

    Arguments:
        folder: of the checkpoint.
        every: number of optimizer steps; None writes at epochs only.
        seconds: between checkpoints at epochs, which may be short.
    """

    def __init__(self, folder: Path, every: int | None = None, seconds: float = 0.0) -> None:
        self.path, self.every, self.seconds = folder / LAST, every, seconds
        self._written = time.monotonic()
        self._before_batch: int | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # The batch that comes counts as ready. When a run is resumed before it, it would be counted twice.
        total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        total.ready = total.started + 1
        # Nothing is left of the restart. While the loop restarts, Lightning does not step ReduceLROnPlateau.
        trainer.fit_loop.restarting = False
        at_epoch = batch_idx == 0 and trainer.current_epoch > 0 and time.monotonic() - self._written >= self.seconds
        at_step = self.every is not None and trainer.global_step > 0 and trainer.global_step % self.every == 0
        if at_epoch or (at_step and batch_idx % trainer.accumulate_grad_batches == 0):
            self._before_batch = batch_idx
            trainer.save_checkpoint(self.path)
            self._before_batch, self._written = None, time.monotonic()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._before_batch is None:
            return
        # On resuming, Lightning adds 1 to its count of steps if the batch to come completes one: it takes it for done.
        coming = self._before_batch + 1
        if coming % trainer.accumulate_grad_batches == 0 or coming == trainer.num_training_batches:
            checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
