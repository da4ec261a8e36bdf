"""One run: a configuration becomes a folder with the configuration, the weights, the curves and the metrics."""

import dataclasses
import logging
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import resolvent as rs
from resolvent_lab import lightning
from resolvent_lab.experiments import machine, strict_json
from resolvent_lab.experiments.catalogue import EXPERIMENTS
from resolvent_lab.experiments.experiment import Data
from resolvent_lab.experiments.network import Config, Metrics, Network

_CURVE_POINTS = 300

ROBUSTNESS = "robustness.json"
"""What attacks on a trained network found, which may be added to the folder of a run later."""

OnEpoch = Callable[[int], bool]
"""Told the epochs done so far; answers whether to go on."""


@dataclass(frozen=True)
class Run:
    """A finished run, as it lies in its folder."""

    experiment: str
    config: Config
    metrics: Metrics
    versions: dict[str, str]
    seconds: float
    folder: Path

    def curves(self) -> dict[str, list[float]]:
        """What was recorded in training, by name, with "epoch" among them."""
        curves: dict[str, list[float]] = strict_json.load(self.folder / "curves.json")
        return curves

    def network(self) -> Network:
        """The trained network."""
        network = EXPERIMENTS[self.experiment].network(self.config).float()
        network.load_state_dict(torch.load(self.folder / "weights.pt", weights_only=True))
        return network.eval()

    def batches(self) -> Any:
        """The data that the network was trained on."""
        torch.manual_seed(self.config.seed)
        return EXPERIMENTS[self.experiment].data(self.config).batches


def folder_of(experiment: str, config: Config, out: Path) -> Path:
    return out / "runs" / experiment / config.name


def is_finished(experiment: str, config: Config, out: Path) -> bool:
    """Whether the folder of the run exists; one with other settings under the same name is an error."""
    folder = folder_of(experiment, config, out)
    if not folder.exists():
        return False
    # As it is read now: a setting that did not exist when the run was made has its default.
    found = dataclasses.asdict(type(config)(**strict_json.load(folder / "config.json")["config"]))
    asked = dataclasses.asdict(config)
    if found != asked:
        differing = {key: (found.get(key), asked[key]) for key in asked if found.get(key) != asked[key]}
        raise ValueError(
            f"{folder} holds a run with other settings (there, asked for): {differing}. Take another folder with "
            "--out, or remove that one."
        )
    return True


def load(folder: Path) -> Run:
    """The run in a folder."""
    described = strict_json.load(folder / "config.json")
    outcome = strict_json.load(folder / "metrics.json")
    config = EXPERIMENTS[described["experiment"]].config(**described["config"])
    if (folder / ROBUSTNESS).exists():
        outcome["metrics"]["robustness"] = strict_json.load(folder / ROBUSTNESS)
    return Run(described["experiment"], config, folder=folder, **outcome)


def train(experiment: str, config: Config, out: Path, on_epoch: OnEpoch = lambda _: True) -> bool:
    """Train a network and write the folder of the run, all of it at once.

    Returns:
        Whether the run was finished; it is not if `on_epoch` put an end to it.
    """
    parts = EXPERIMENTS[experiment]
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    # States are a few numbers: more threads would only wait for each other, and half of the digits is enough.
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    try:
        torch.manual_seed(config.seed)
        batches = parts.data(config)
        network = parts.network(config)
        began = time.perf_counter()
        if not _fit(network, batches, on_epoch):
            return False
        seconds = time.perf_counter() - began
        _write(folder_of(experiment, config, out), experiment, network, network.measure(batches.batches), seconds)
        return True
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


class _Watch(lightning.Callback):
    def __init__(self, on_epoch: OnEpoch) -> None:
        self.on_epoch = on_epoch
        self.stopped = False

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if not self.on_epoch(trainer.current_epoch + 1):
            self.stopped = trainer.should_stop = True


def _fit(network: Network, batches: Data, on_epoch: OnEpoch) -> bool:
    watch = _Watch(on_epoch)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # What Lightning advises for large data: workers, and longer intervals of logging.
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="gpu" if machine.device().type == "cuda" else "cpu",
            devices=1,
            max_epochs=network.config.epochs,
            callbacks=[watch],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(network.train(), datamodule=batches)
    network.eval()
    return not watch.stopped


def _write(folder: Path, experiment: str, network: Network, metrics: Metrics, seconds: float) -> None:
    """Write into a folder beside, and rename it: a folder of this name is that of a finished run."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        torch.save(network.state_dict(), draft / "weights.pt")
        described = {"experiment": experiment, "config": dataclasses.asdict(network.config)}
        strict_json.dump(described, draft / "config.json")
        outcome = {"metrics": metrics, "versions": versions(), "seconds": seconds}
        strict_json.dump(outcome, draft / "metrics.json")
        strict_json.dump(_thinned(network.curves, network.config.epochs), draft / "curves.json")
        draft.chmod(0o755)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _thinned(curves: dict[str, list[float]], epochs: int) -> dict[str, list[float]]:
    """The means over each epoch, at up to 300 epochs."""
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
