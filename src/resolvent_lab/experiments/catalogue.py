"""The catalogue of experiments. Experiments are imported when they are needed: their names alone need no torch."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolvent_lab.experiments.experiment import Experiment

NAMES = ("regression", "stiff", "lotka-volterra", "robertson", "van-der-pol", "mnist")
"""The names of all experiments. A new one is a folder of that name, with `_` in place of `-`, and an entry here."""


@cache
def experiments() -> "dict[str, Experiment]":
    """All experiments by name: the record `EXPERIMENT` of each folder."""
    folders = [import_module(f"resolvent_lab.experiments.{name.replace('-', '_')}") for name in NAMES]
    return {folder.EXPERIMENT.name: folder.EXPERIMENT for folder in folders}


def register(experiment: "Experiment") -> None:
    """Adds an experiment of your own in this process. Runs in parallel processes (`jobs` > 1) do not know it."""
    experiments()[experiment.name] = experiment


def chosen(name: str) -> "list[Experiment]":
    """The experiment of that name, or all of them for "all"."""
    if name == "all":
        return list(experiments().values())
    if name not in experiments():
        raise ValueError(f"there is no experiment {name!r}: take one of {', '.join(experiments())}, or all.")
    return [experiments()[name]]
