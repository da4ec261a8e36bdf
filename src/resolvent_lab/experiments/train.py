"""Training of one run, from its last checkpoint if there is one."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from resolvent_lab import lightning
from resolvent_lab.experiments import machine
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.experiment import Data
from resolvent_lab.experiments.network import RunConfig, Trainable
from resolvent_lab.experiments.run import described, folder_of, write
from resolvent_lab.experiments.unfinished import Unfinished
from resolvent_lab.fitting.checkpoints import UnusableCheckpointError
from resolvent_lab.fitting.fit import fit, make_trainer

CHECKPOINT_SECONDS = 10.0
"""Between the checkpoints of a run. They are written before an epoch, which may take a hundredth of a second."""

OnEpoch = Callable[[int], object]
"""Called at the start and after each epoch with the number of epochs so far. An exception ends the run."""


def train(experiment: str, config: RunConfig, out: Path, on_epoch: OnEpoch = lambda _: None) -> None:
    """Trains a network and writes the folder of the run. The folder appears when it is complete.

    A run that was killed goes on from its last checkpoint, and ends as if it had not been (bit by bit on a CPU).
    """
    parts = experiments()[experiment]
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    # States are a few numbers: more threads would only wait for each other, and single precision is enough.
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    try:
        torch.manual_seed(config.seed)
        data = parts.data(config)
        network = parts.network(config)
        folder = folder_of(experiment, config, out)
        unfinished = Unfinished(folder)
        unfinished.begin(described(experiment, config))
        seconds = fitted(network, data, unfinished, on_epoch)
        write(folder, experiment, network, network.measure(data.batches), seconds)
        unfinished.remove()
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


class _Watch(lightning.Callback):
    def __init__(self, on_epoch: OnEpoch) -> None:
        self.on_epoch = on_epoch

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.on_epoch(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.on_epoch(trainer.current_epoch + 1)


def fitted(network: Trainable, data: Data, unfinished: Unfinished, on_epoch: OnEpoch = lambda _: None) -> float:
    """Trains a network. Returns the seconds that it took, with those before the last checkpoint."""
    timer = lightning.Timer(verbose=False)
    with warnings.catch_warnings():
        # Lightning's advice for large data: more workers, longer intervals of logging.
        warnings.simplefilter("ignore")
        trainer = make_trainer(
            unfinished.path,
            [timer, _Watch(on_epoch)],
            seconds=CHECKPOINT_SECONDS,
            accelerator="gpu" if machine.device().type == "cuda" else "cpu",
            devices=1,
            max_epochs=network.config.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        try:
            fit(trainer, network.train(), data, unfinished.last)
        except UnusableCheckpointError as error:
            print(f"{error} The run begins anew.", flush=True)
            fit(trainer, network.train(), data)
    network.eval()
    return timer.time_elapsed()
