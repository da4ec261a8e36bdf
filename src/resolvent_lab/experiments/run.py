"""One run: a configuration is trained, and becomes a folder with configuration, weights, curves and metrics."""

import dataclasses
import logging
import platform
import shutil
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import resolvent as rs
from resolvent_lab import lightning, strict_json
from resolvent_lab.experiments import machine
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.experiment import Data
from resolvent_lab.experiments.network import Metrics, RunConfig, Trainable

_CURVE_POINTS = 300
_WEIGHTS, _CURVES = "weights.pt", "curves.json"

ROBUSTNESS = "robustness.json"
"""Results of attacks on the trained network. They may be added to the folder of a run later."""

OnEpoch = Callable[[int], object]
"""Called after each epoch with the number of epochs so far. An exception ends the run."""


class DamagedRunError(ValueError):
    """A file in the folder of a run is missing or cannot be read."""


class UnknownRunError(ValueError):
    """The folder of a run is from another version, or from an experiment that is not in the catalogue."""


@dataclass(frozen=True)
class Run:
    """A finished run, as stored in its folder. Its configuration and its network have the classes of its experiment."""

    experiment: str
    config: Any
    metrics: Metrics
    versions: dict[str, str]
    seconds: float
    folder: Path

    def curves(self) -> dict[str, list[float]]:
        """The values recorded in training, by name; "epoch" has the epochs."""
        curves: dict[str, list[float]] = strict_json.load(self.folder / _CURVES)
        return curves

    def network(self) -> Any:
        """The trained network."""
        network = experiments()[self.experiment].network(self.config)
        network = network.to(network.precision)
        network.load_state_dict(torch.load(self.folder / _WEIGHTS, weights_only=True))
        return network.eval()

    def batches(self) -> Any:
        """The data that the network was trained on."""
        torch.manual_seed(self.config.seed)
        return experiments()[self.experiment].data(self.config).batches


def folder_of(experiment: str, config: RunConfig, out: Path) -> Path:
    return out / "runs" / experiment / config.name


def is_finished(experiment: str, config: RunConfig, out: Path) -> bool:
    """Whether the run is in its folder.

    A damaged folder is moved aside, with a message, so that the run is repeated. A run with other settings under the
    same name is an error.
    """
    folder = folder_of(experiment, config, out)
    if not folder.exists():
        return False
    try:
        found = dataclasses.asdict(load(folder).config)
    except DamagedRunError as error:
        aside = folder.with_name(f".damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        print(f"{error} The run is repeated; the damaged folder is now {aside}.", flush=True)
        return False
    asked = dataclasses.asdict(config)
    if found != asked:
        differing = {key: (found[key], asked[key]) for key in asked if found[key] != asked[key]}
        raise ValueError(
            f"{folder} holds a run with other settings (there, asked for): {differing}. Take another folder with "
            "--out, or remove that one."
        )
    return True


def load(folder: Path) -> Run:
    """Reads the run in a folder. Raises DamagedRunError, with the name of the file, if a file cannot be read."""
    try:
        described = strict_json.load(folder / "config.json")
        outcome = strict_json.load(folder / "metrics.json")
        strict_json.load(folder / _CURVES)
        _check_archive(folder / _WEIGHTS)
        name, settings = described["experiment"], described["config"]
        run = Run(name, _config(name, settings, folder), folder=folder, **outcome)
    except OSError as error:
        raise DamagedRunError(f"{folder} is damaged: cannot read {error.filename} ({error.strerror}).") from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnknownRunError):
            raise
        raise DamagedRunError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None
    if (folder / ROBUSTNESS).exists():
        run.metrics["robustness"] = strict_json.load(folder / ROBUSTNESS)
    return run


def _config(experiment: str, settings: dict[str, Any], folder: Path) -> RunConfig:
    """A configuration from its JSON. A setting that did not exist when the run was made gets its default."""
    if experiment not in experiments():
        raise UnknownRunError(f"{folder} holds a run of an unknown experiment, {experiment!r}.")
    config = experiments()[experiment].config
    unknown = sorted(set(settings) - {field.name for field in dataclasses.fields(config)})
    if unknown:
        raise UnknownRunError(f"{folder} holds a run with settings that this version does not know: {unknown}.")
    return config(**settings)


def finished_runs(out: Path, experiment: str = "[!.]*") -> list[Run]:
    """All runs in a folder of results, or those of one experiment. What cannot be read is left out, with a message."""
    runs = []
    for path in sorted((out / "runs").glob(f"{experiment}/[!.]*/")):
        if path.is_dir():
            try:
                runs.append(load(path))
            except (DamagedRunError, UnknownRunError) as error:
                print(f"{error} It is left out.", flush=True)
    return runs


def _check_archive(path: Path) -> None:
    """Raises a ValueError if a file of weights is incomplete. Its contents are not unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: {error}") from None
    if broken is not None:
        raise ValueError(f"{path}: wrong checksum of {broken}")


def train(experiment: str, config: RunConfig, out: Path, on_epoch: OnEpoch = lambda _: None) -> None:
    """Trains a network and writes the folder of the run. The folder appears when it is complete."""
    parts = experiments()[experiment]
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    # States are a few numbers: more threads would only wait for each other, and single precision is enough.
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    try:
        torch.manual_seed(config.seed)
        batches = parts.data(config)
        network = parts.network(config)
        began = time.perf_counter()
        _fit(network, batches, on_epoch)
        seconds = time.perf_counter() - began
        _write(folder_of(experiment, config, out), experiment, network, network.measure(batches.batches), seconds)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


class _Watch(lightning.Callback):
    def __init__(self, on_epoch: OnEpoch) -> None:
        self.on_epoch = on_epoch

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.on_epoch(trainer.current_epoch + 1)


def _fit(network: Trainable, batches: Data, on_epoch: OnEpoch) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Lightning's advice for large data: more workers, longer intervals of logging.
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="gpu" if machine.device().type == "cuda" else "cpu",
            devices=1,
            max_epochs=network.config.epochs,
            callbacks=[_Watch(on_epoch)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(network.train(), datamodule=batches)
    network.eval()


def _write(folder: Path, experiment: str, network: Trainable, metrics: Metrics, seconds: float) -> None:
    """Writes into a temporary folder and renames it, so that a folder of this name is always complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        torch.save(network.state_dict(), draft / _WEIGHTS)
        described = {"experiment": experiment, "config": dataclasses.asdict(network.config)}
        strict_json.dump(described, draft / "config.json")
        outcome = {"metrics": metrics, "versions": versions(), "seconds": seconds}
        strict_json.dump(outcome, draft / "metrics.json")
        strict_json.dump(_thinned(network.curves, network.config.epochs), draft / _CURVES)
        draft.chmod(0o755)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _thinned(curves: dict[str, list[float]], epochs: int) -> dict[str, list[float]]:
    """The means over each epoch, for up to 300 epochs."""
    every = max(1, epochs // _CURVE_POINTS)
    means = {name: torch.tensor(values).reshape(epochs, -1).mean(1) for name, values in curves.items()}
    return {"epoch": list(range(1, epochs + 1, every)), **{name: m[::every].tolist() for name, m in means.items()}}


def versions() -> dict[str, str]:
    return {
        "resolvent": rs.__version__,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "python": platform.python_version(),
    }
