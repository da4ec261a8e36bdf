"""The columns of the table by name, and the configurations of their runs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resolvent_lab.experiments import machine
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.images import load

THETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
QUICK_THETAS = (0.0, 1.0)

Settings = Mapping[str, Any]

_PLAIN: Settings = {"alpha_div": 0.0, "schedule": "onecycle"}
_FREE: Settings = {"normalization": "free", **_PLAIN}

COLUMNS: dict[str, Settings] = {
    **{f"theta{theta:g}": {"theta": theta} for theta in THETAS},
    # With F^{-3,1} and h = 1 an explicit layer cancels its skip connection: y = 2 S*G(x). This one keeps a quarter.
    "explicit-2.5": {"theta": 0.0, "low": -2.5},
    "explicit-1lip": {"theta": 0.0, "low": -1.0, "scale": 0.5, "alpha_div": 0.0},
    "explicit-free": {"theta": 0.0, **_FREE},
    "explicit-batchnorm": {"theta": 0.0, **_FREE, "normalization": "batch"},
    "implicit-free-0.5": {"theta": 0.5, **_FREE},
    "implicit-free": {"theta": 1.0, **_FREE},
}
"""The settings of each column that differ from the defaults of `MnistConfig`."""

_TUNED: Settings = {
    **_FREE,
    "learn_scale": False,
    "scale": 0.5,
    "step_size": 2.0,
    "batch_size": 50,
    "learning_rate": 5e-3,
    "weight_decay": 0.1,
}
_GRADIENT: Settings = {
    **_PLAIN,
    "normalization": "gradient",
    "step_size": 3.0,
    "batch_size": 100,
    "learning_rate": 5e-3,
    "weight_decay": 1.0,
    "label_smoothing": 0.1,
    "stem_gain": 0.1,
}

TUNED: dict[str, Settings] = {
    "explicit-tuned": {"theta": 0.0, **_TUNED},
    "explicit-batchnorm-tuned": {
        "theta": 0.0,
        **_PLAIN,
        "normalization": "batch",
        "batch_size": 50,
        "learning_rate": 5e-3,
        "weight_decay": 0.1,
    },
    # The longest step for which an explicit layer of a gradient flow with |K| = 1 is non-expansive.
    "explicit-gradient": {"theta": 0.0, **_GRADIENT, "normalization": "bounded-gradient", "step_size": 2.0},
    "implicit-tuned-0.5": {"theta": 0.5, **_TUNED, "graph_steps": 12},
    "implicit-tuned": {"theta": 1.0, **_TUNED, "graph_steps": 24},
    "implicit-gradient-0.5": {"theta": 0.5, **_GRADIENT},
    "implicit-gradient": {"theta": 1.0, **_GRADIENT},
}
"""Recipes chosen for accuracy under noise. They are run on request: by name, or all by "tuned"."""

_SMOOTH: Settings = {
    **_TUNED,
    "label_smoothing": 0.1,
    "stem_gain": 0.3,
    "sensitivity": 0.5,
    "measure": "softmax",
}

SMOOTH: dict[str, Settings] = {
    "explicit-smooth": {"theta": 0.0, **_SMOOTH, "graph_steps": 1},
    # The best recipe found for an explicit network.
    "explicit-smooth-variance": {
        "theta": 0.0,
        **_TUNED,
        "scale": 1.0,
        "learning_rate": 1e-2,
        "stem_gain": 0.3,
        "sensitivity": 0.03,
        "measure": "variance",
        "graph_steps": 1,
    },
    "implicit-smooth-0.5": {"theta": 0.5, **_SMOOTH, "graph_steps": 12},
    "implicit-smooth": {"theta": 1.0, **_SMOOTH, "graph_steps": 16},
}
"""Recipes with a penalty on the sensitivity to the input. They are run on request: by name, or all by "smooth"."""

HARDENED: dict[str, Settings] = {
    # One step per attack: each further step would take about as long as the rest of the training.
    f"{name}-{training}": {**TUNED[name], "training": training, "attack_steps": 1}
    for name in ("explicit-tuned", "implicit-tuned-0.5")
    for training in ("noise", "adversarial")
}
"""Recipes that train on noisy or attacked images. They are run on request, by name."""

FAMILIES = (COLUMNS, TUNED, SMOOTH, HARDENED)
"""Columns that are shown together, in this order."""

_GROUPS = {"tuned": TUNED, "smooth": SMOOTH}

_QUICK: Settings = {
    "epochs": 6,
    "schedule": "onecycle",
    "limit": 200,
    "draws": 1,
    "train_size": 500,
    "batch_size": 50,
}
_QUICK_COLUMNS = (
    *(f"theta{theta:g}" for theta in QUICK_THETAS),
    "explicit-free",
    "implicit-free",
    "implicit-smooth-0.5",
)


def configs(
    quick: bool,
    thetas: Sequence[float] | None,
    seeds: int,
    *,
    columns: str | None = None,
    data: str = "digits",
    held_out: str = "test",
) -> list[MnistConfig]:
    """The configurations of a table.

    Arguments:
        quick: short training, few columns, few images.
        thetas: only columns with these values. A value without a column gets one like the paper's.
        seeds: number of seeds.
        columns: names separated by commas, where "tuned" and "smooth" mean all of `TUNED` and `SMOOTH`; or a JSON file,
            {name: {setting: value, ...}, ...}, in which the setting "base" names a column to start from. None takes
            the columns of the table.
        data, held_out: see `MnistConfig`.
    """
    chosen = _chosen(columns, quick, thetas)
    changes: dict[str, Any] = {**(_QUICK if quick else {}), "data": data, "held_out": held_out, **_format(data)}
    return [_config(name, {**settings, **changes}, seed) for seed in range(seeds) for name, settings in chosen.items()]


def family(column: str) -> int:
    """The index of the family of a column. Your own columns come last."""
    found = (n for n, columns in enumerate(FAMILIES) if column in columns)
    return next(found, 0 if column.startswith("theta") else len(FAMILIES))


def place(column: str) -> tuple[int, int, str]:
    """The sort key of a column."""
    number = family(column)
    names = list(FAMILIES[number]) if number < len(FAMILIES) else []
    return number, names.index(column) if column in names else len(names), column


def _chosen(columns: str | None, quick: bool, thetas: Sequence[float] | None) -> dict[str, Settings]:
    if columns is not None and columns.endswith(".json"):
        found = _from_file(Path(columns))
    elif columns is not None:
        names = [name for given in columns.split(",") for name in _GROUPS.get(given, [given])]
        found = {name: _column(name) for name in names}
    else:
        found = {name: _column(name) for name in (_QUICK_COLUMNS if quick else COLUMNS)}
        found |= {f"theta{theta:g}": {"theta": theta} for theta in thetas or ()}
    return found if not thetas else {name: s for name, s in found.items() if s["theta"] in thetas}


def _from_file(path: Path) -> dict[str, Settings]:
    try:
        entries = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read the columns in {path}: {error}") from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ValueError(f"{path} must hold an object of columns, each an object of settings.")
    found: dict[str, Settings] = {}
    for name, entry in entries.items():
        own = {key: value for key, value in entry.items() if key != "base"}
        found[name] = {"theta": 0.5, **(_column(entry["base"]) if "base" in entry else {}), **own}
    return found


def _column(name: str) -> Settings:
    known = {key: settings for columns in FAMILIES for key, settings in columns.items()}
    if name not in known:
        raise ValueError(f"there is no column {name!r}: take some of {', '.join(known)}, or a JSON file.")
    return known[name]


def _config(name: str, settings: Settings, seed: int) -> MnistConfig:
    known = {field.name for field in dataclasses.fields(MnistConfig)} - {"column", "seed"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(f"column {name!r} has settings that do not exist: {', '.join(unknown)}.")
    return MnistConfig(column=name, seed=seed, **settings)


def _format(data: str) -> Settings:
    """For your own images: their size, the number of classes and the number of training images."""
    if data == "digits":
        return {}
    # Read once before the runs: errors in the data show at once, and MNIST is downloaded only once.
    split = load(data, machine.data_dir(), train=None)
    if data == "mnist":
        return {}
    colours, height, width = split.train.images.shape[1:]
    size = {"colours": colours, "height": height, "width": width, "num_classes": split.num_classes}
    return {**size, "train_size": len(split.train.labels)}
