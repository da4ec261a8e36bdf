"""The settings of a sweep in words, and how they differ from those of the paper."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from resolvent_lab.experiments.catalogue import EXPERIMENTS
from resolvent_lab.experiments.network import Config


def settings(configs: Sequence[Config]) -> str:
    """Every setting, with all of the values that it takes."""
    return "; ".join(f"{_words(name)} {_listed(values)}" for name, values in _values(configs).items())


def differences(experiment: str, configs: Sequence[Config]) -> str:
    """Which values differ from those of the sweep at full length; seeds do not count. Nothing if none does."""
    full = _values(EXPERIMENTS[experiment].configs(False, None, 1))
    found = {name: values for name, values in _values(configs).items() if name != "seed" and values != full[name]}
    changes = (f"{_words(name)} {_listed(values)} instead of {_listed(full[name])}" for name, values in found.items())
    return "; ".join(changes)


def _values(configs: Sequence[Config]) -> dict[str, list[Any]]:
    return {f.name: sorted({getattr(config, f.name) for config in configs}, key=_order) for f in fields(configs[0])}


def _order(value: Any) -> tuple[str, Any]:
    """Numbers by size, whatever else by its kind."""
    return ("", value) if isinstance(value, int | float) else (type(value).__name__, str(value))


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _words(name: str) -> str:
    return name.replace("_", " ")
