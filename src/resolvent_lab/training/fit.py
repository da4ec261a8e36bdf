"""Training: from the settings of a run to its folder."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import resolvent as rs
from resolvent_lab.command import CommandError, Interrupted
from resolvent_lab.fitting.checkpoints import BEST, UnusableCheckpointError, read_checkpoint
from resolvent_lab.fitting.fit import fit, make_trainer
from resolvent_lab.lightning import Callback, LightningModule, MisconfigurationException, Trainer
from resolvent_lab.lock import exclusive
from resolvent_lab.solver_monitor import SolverMonitor
from resolvent_lab.training import configuration
from resolvent_lab.training.batches import mixed
from resolvent_lab.training.data import Data
from resolvent_lab.training.learner import Learner
from resolvent_lab.training.run_folder import RunFolder

if TYPE_CHECKING:
    from jsonargparse import Namespace


class SeedEachBatch(Callback):
    """Seeds torch before each batch, by the seed of the run, the epoch, the batch and the rank.

    Random numbers then do not depend on what was drawn before: a run that is resumed draws the same.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(mixed(self.seed, trainer.current_epoch, batch_idx, trainer.global_rank))


def train(settings: "Namespace") -> dict[str, Any]:
    """Trains, or goes on with a run in its folder. Returns its metrics.

    A run that was interrupted or killed goes on from its last checkpoint, and ends as if it had not been (bit by bit on
    a CPU with the same number of threads). A finished run is not repeated, unless it shall have more epochs or steps.

    Arguments:
        settings: see `resolvent_lab.training.configuration.parse`.
    """
    configuration.check(settings)
    torch.manual_seed(settings.seed)
    objects = configuration.instantiate(settings)
    objects.data.seed = settings.seed
    learner = _learner(objects)
    folder = RunFolder(settings.out)
    trainer = _trainer(objects, folder, learner)
    if _rank() > 0:  # started by the first process, which holds the folder
        return _train(settings, objects.data, learner, trainer, folder)
    with exclusive(folder.path):
        folder.clean()
        return _train(settings, objects.data, learner, trainer, folder)


def _rank() -> int:
    return int(next((os.environ[name] for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID") if name in os.environ), 0))


def _learner(objects: Any) -> Learner:
    """The network with its data and optimizer. What is wrong with them is found here, before anything is written."""
    learner = Learner(
        objects.model,
        objects.data.facts,
        objects.optimizer,
        objects.lr_scheduler,
        objects.lr_interval,
        objects.monitor,
        objects.penalties,
    )
    if objects.monitor == "val_accuracy" and learner.facts.task != "classification":
        raise ValueError(f"val_accuracy is for classification, got {learner.facts.task}: take monitor val_loss.")
    objects.data.part("validation")
    try:
        learner.configure_optimizers()
    except TypeError as error:
        raise ValueError(f"optimizer or lr_scheduler: {error}") from None
    return learner


def _train(settings: "Namespace", data: Data, learner: Learner, trainer: Trainer, folder: RunFolder) -> dict[str, Any]:
    finished, resumed = folder.metrics(), folder.last if folder.last.exists() else None
    if folder.config.exists() and (finished is not None or resumed is not None):
        before = configuration.read(folder.config)
        changed = configuration.differences(before, settings)
        if changed:
            raise ValueError(
                f"{folder.path} holds a run with another {', '.join(changed)}: take another --out, or remove "
                "that folder."
            )
        if finished is not None and _lengths(before) == _lengths(settings):
            print(f"the run in {folder.path} is finished already")
            return finished
    if _rank() == 0:
        folder.write_config(configuration.text(settings))
        folder.write_facts(learner.facts)
    _fit(trainer, learner, data, resumed, folder)
    return _finish(folder, learner) if trainer.global_rank == 0 else {}


def _lengths(settings: "Namespace") -> tuple[Any, ...]:
    trainer = settings.trainer
    return tuple(trainer[key] for key in ("max_epochs", "max_steps", "max_time"))


def _trainer(objects: Any, folder: RunFolder, learner: Learner) -> Trainer:
    options = dict(vars(objects.trainer))
    callbacks = [*_listed(options.pop("callbacks", None)), *_callbacks(objects, folder, learner)]
    plugins = _listed(options.pop("plugins", None))
    if options.get("logger") in (None, True):
        options["logger"] = _loggers(folder.logs)
    if options.get("log_every_n_steps") is None:
        options["log_every_n_steps"] = max(1, min(50, learner.facts.samples // objects.data.batch_size))
    options["default_root_dir"] = folder.path
    try:
        return make_trainer(folder.checkpoints, callbacks, plugins, objects.checkpoint_every, **options)
    except (MisconfigurationException, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"trainer: {str(error).splitlines()[0]}") from None


def _callbacks(objects: Any, folder: RunFolder, learner: Learner) -> list[Callback]:
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    mode = "max" if objects.monitor == "val_accuracy" else "min"
    best = ModelCheckpoint(
        folder.checkpoints, "best", objects.monitor, mode=mode, save_top_k=1, enable_version_counter=False
    )
    callbacks: list[Callback] = [SeedEachBatch(objects.seed), best]
    if any(isinstance(module, rs.Block | rs.Equilibrium) for module in learner.modules()):
        callbacks.append(SolverMonitor())
    if objects.patience is not None:
        callbacks.append(EarlyStopping(objects.monitor, patience=objects.patience, mode=mode))
    return callbacks


def _loggers(folder: Path) -> list[Any]:
    """CSV, and TensorBoard if it is installed."""
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers: list[Any] = [CSVLogger(folder, name="csv")]
    with contextlib.suppress(ModuleNotFoundError):
        loggers.append(TensorBoardLogger(folder, name="tensorboard"))
    return loggers


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _fit(trainer: Trainer, learner: Learner, data: Data, resumed: Path | None, folder: RunFolder) -> None:
    try:
        fit(trainer, learner, data, resumed)
    except UnusableCheckpointError as error:
        raise ValueError(f"{error} Remove it to begin anew, or put {BEST} in its place to go on from there.") from None
    except rs.ConvergenceError as error:
        raise CommandError(f"{error} The run is in {folder.path}; on_failure: mask would go on.") from None
    except Interrupted as stop:
        stop.add_note(f"the run is in {folder.path}; start the same command again to go on from its last checkpoint")
        raise


def _finish(folder: RunFolder, learner: Learner) -> dict[str, Any]:
    best = read_checkpoint(folder.best)
    folder.write_weights("best", best["state_dict"])
    folder.write_weights("last", learner.state_dict())
    folder.write_history(learner.history)
    row = next(row for row in learner.history if row["epoch"] == best["epoch"])
    metrics = {"best_epoch": best["epoch"], **row, "epochs": len(learner.history), "versions": _versions()}
    folder.write_json("metrics.json", metrics)
    return metrics


def _versions() -> dict[str, str]:
    from resolvent_lab import lightning

    return {"resolvent": rs.__version__, "torch": torch.__version__, "lightning": lightning.__version__}
