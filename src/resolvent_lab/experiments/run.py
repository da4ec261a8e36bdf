"""A finished run: a folder with configuration, weights, curves and metrics."""

import dataclasses
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import resolvent as rs
from resolvent_lab import lightning, strict_json
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.network import Metrics, RunConfig, Trainable
from resolvent_lab.experiments.unfinished import CONFIG, Unfinished
from resolvent_lab.fitting.weights import read_weights, write_weights

_CURVE_POINTS = 300
_WEIGHTS, _CURVES = "weights.safetensors", "curves.json"

ROBUSTNESS = "robustness.json"
"""Results of attacks on the trained network. They may be added to the folder of a run later."""


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
        network.load_state_dict(read_weights(self.folder / _WEIGHTS))
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
    same name, finished or not, is an error.
    """
    folder = folder_of(experiment, config, out)
    if not folder.exists():
        _check_unfinished(experiment, config, Unfinished(folder))
        return False
    try:
        found = load(folder).config
    except DamagedRunError as error:
        aside = folder.with_name(f".damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        print(f"{error} The run is repeated; the damaged folder is now {aside}.", flush=True)
        return False
    _check_settings(found, config, folder)
    Unfinished(folder).remove()
    return True


def _check_settings(found: RunConfig, config: RunConfig, folder: Path) -> None:
    there, asked = dataclasses.asdict(found), dataclasses.asdict(config)
    differing = {key: (there[key], asked[key]) for key in asked if there[key] != asked[key]}
    if differing:
        raise ValueError(
            f"{folder} holds a run with other settings (there, asked for): {differing}. Take another folder with "
            "--out, or remove that one."
        )


def _check_unfinished(experiment: str, config: RunConfig, unfinished: Unfinished) -> None:
    if unfinished.last is None:
        return
    try:
        found = _config(experiment, unfinished.settings()["config"], unfinished.path)
    except (KeyError, OSError, TypeError, ValueError) as error:
        print(f"{unfinished.path} cannot be used ({error}). The run begins anew.", flush=True)
        unfinished.remove()
        return
    _check_settings(found, config, unfinished.path)


def load(folder: Path) -> Run:
    """Reads the run in a folder. Raises DamagedRunError, with the name of the file, if a file cannot be read."""
    try:
        described = strict_json.load(folder / CONFIG)
        outcome = strict_json.load(folder / "metrics.json")
        strict_json.load(folder / _CURVES)
        read_weights(folder / _WEIGHTS)
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


def write(folder: Path, experiment: str, network: Trainable, metrics: Metrics, seconds: float) -> None:
    """Writes into the folder of the unfinished run and renames, so that a folder of this name is always complete."""
    draft = Unfinished(folder).path / "finished"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    write_weights(draft / _WEIGHTS, network.state_dict())
    strict_json.dump(described(experiment, network.config), draft / CONFIG)
    outcome = {"metrics": metrics, "versions": versions(), "seconds": seconds}
    strict_json.dump(outcome, draft / "metrics.json")
    strict_json.dump(_thinned(network.curves, network.config.epochs), draft / _CURVES)
    draft.rename(folder)


def described(experiment: str, config: RunConfig) -> dict[str, Any]:
    return {"experiment": experiment, "config": dataclasses.asdict(config)}


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
