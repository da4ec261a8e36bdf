"""The paper's experiments, from one command to a report."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from resolvent.experiments.catalogue import EXPERIMENTS, chosen
from resolvent.experiments.results import collect
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


def reproduce(
    experiment: str = "all",
    quick: bool = False,
    theta: list[float] | None = None,
    seeds: int = 1,
    jobs: int | None = None,
    out: Path = Path("results"),
) -> None:
    """Reproduce the paper's experiments: train what is missing in a folder, draw the figures, write the report.

    Args:
        experiment: regression, stiff, lotka-volterra or all.
        quick: a small version of the same, in a few minutes.
        theta: of the layers; those of the paper by default.
        seeds: how often everything is repeated, with the seeds 0, 1, ...
        jobs: parallel processes; as many as there are cores by default.
        out: folder for results.json, report.html, figures and runs. Runs that are finished there are not repeated.
    """
    from resolvent.experiments.report import write_report  # needs matplotlib, which training does not

    try:
        train_all(experiment, quick, theta, seeds, jobs, out)
    except KeyboardInterrupt:
        sys.exit(f"interrupted: what was finished is in {out}; start the same command again to go on")
    print(f"wrote {write_report(out, collect(out))}")
