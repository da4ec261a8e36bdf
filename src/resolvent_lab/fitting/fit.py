"""Fitting a Lightning module, from its last checkpoint if there is one."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent_lab.fitting.checkpoints import LastCheckpoint, SafeCheckpoints, load_state, read_checkpoint
from resolvent_lab.fitting.layer_states import LayerStates
from resolvent_lab.lightning import Callback, LightningModule, Trainer


def make_trainer(
    checkpoints: Path,
    callbacks: Sequence[Callback] = (),
    plugins: Sequence[Any] = (),
    every: int | None = None,
    seconds: float = 0.0,
    **options: Any,
) -> Trainer:
    """A trainer whose last checkpoint in a folder holds all that a run needs to go on exactly.

    Arguments:
        checkpoints: the folder.
        callbacks, plugins: further ones.
        every, seconds: how often, see `LastCheckpoint`.
        options: of Lightning's Trainer.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return Trainer(
        callbacks=[*callbacks, LayerStates(), LastCheckpoint(checkpoints, every, seconds)],
        plugins=[*plugins, SafeCheckpoints()],
        **options,
    )


def fit(trainer: Trainer, module: LightningModule, data: Any, checkpoint: Path | None = None) -> None:
    """Fits a module to a data module.

    Arguments:
        trainer: see `make_trainer`.
        module, data: the data must begin where the checkpoint ends, as `EpochData` does.
        checkpoint: to go on from. A ValueError says what is wrong with it.
    """
    if checkpoint is not None:
        load_state(module, read_checkpoint(checkpoint)["state_dict"], checkpoint)
    with warnings.catch_warnings():
        # Of Lightning's own code, and of a folder that is not empty because the run goes on.
        warnings.filterwarnings("ignore", ".*treespec", FutureWarning)
        warnings.filterwarnings("ignore", "Checkpoint directory")
        trainer.fit(module, datamodule=data, ckpt_path=None if checkpoint is None else str(checkpoint))
