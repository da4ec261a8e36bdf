"""The paper's experiments, from one command to a report."""

import os
from collections.abc import Sequence
from pathlib import Path

from resolvent.experiments.catalogue import EXPERIMENTS, chosen
from resolvent.experiments.sweep import Task, sweep

# By what a run takes, which is the order in which they are best begun.
_LONGEST_FIRST = ("lotka-volterra", "stiff", "regression")


def train_all(
    experiment: str, quick: bool, theta: Sequence[float] | None, seeds: int, jobs: int | None, out: Path
) -> None:
    """Train the networks that are still missing in a folder of results; `resolvent reproduce` makes the report."""
    if seeds < 1:
        raise ValueError(f"seeds counts repetitions and must be 1 or more, got {seeds}.")
    names = sorted(chosen(experiment), key=_LONGEST_FIRST.index)
    tasks: list[Task] = [(name, config) for name in names for config in EXPERIMENTS[name].configs(quick, theta, seeds)]
    sweep(tasks, out, jobs or os.cpu_count() or 1)
