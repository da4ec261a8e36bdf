"""The paper's experiments, from training to a report."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent_lab.experiments.catalogue import chosen
from resolvent_lab.experiments.mnist.attacks import available
from resolvent_lab.experiments.progress import Task
from resolvent_lab.experiments.results import collect
from resolvent_lab.experiments.sweep import SweepError, sweep
from resolvent_lab.experiments.tables import verdicts, write_summary


def train(
    experiment: str,
    quick: bool = False,
    theta: Sequence[float] | None = None,
    seeds: int = 1,
    jobs: int | None = None,
    out: Path = Path("results"),
    attacks: str | None = None,
    attack_images: int | None = None,
    verbose: bool = False,
    **images: Any,
) -> None:
    """Trains the networks that are missing in a folder of results, without a report.

    Arguments:
        experiment: a name of the catalogue, or "all".
        quick: a small version.
        theta: values of theta; None takes those of the paper.
        seeds: number of seeds 0, 1, ...
        jobs: number of parallel processes; None takes one for each core.
        out: the folder.
        attacks: "quick", "full" or "thorough" attacks on the networks for images once they are trained, or "none";
            None takes "none".
        attack_images: number of held-out images to attack.
        verbose: whether to show the progress of each run.
        images: for experiments with images, see `resolvent_lab.experiments.mnist.columns.configs`.
    """
    if seeds < 1:
        raise ValueError(f"seeds is a number of repetitions and must be 1 or more, got {seeds}.")
    if theta and not all(0 <= value <= 1 for value in theta):
        raise ValueError(f"theta must lie in [0, 1], got {list(theta)}.")
    selected = sorted(chosen(experiment), key=lambda each: -each.duration)
    if experiment == "all" and quick:
        selected = [each for each in selected if each.in_demo]
    tasks: list[Task] = []
    for each in selected:
        extras = {key: images[key] for key in each.extras if key in images}
        tasks += [(each.name, config) for config in each.configs(quick, theta, seeds, **extras)]
    sweep(tasks, out, _processes(jobs), verbose)
    if attacks is None or attacks == "none":
        return
    for each in selected:
        if each.attack is not None:
            each.attack(out, attacks, (20 if quick else 200) if attack_images is None else attack_images)


def reproduce(
    experiment: str,
    quick: bool = False,
    theta: Sequence[float] | None = None,
    seeds: int = 1,
    jobs: int | None = None,
    out: Path = Path("results"),
    attacks: str | None = None,
    attack_images: int | None = None,
    verbose: bool = False,
    **images: Any,
) -> None:
    """Trains the networks that are missing, draws the figures, and writes tables and report.

    The arguments are those of `train`. By default networks for images are attacked if pyautoattack is installed, but
    not in the quick version. The report covers all runs in the folder. It lists failed runs; then SweepError is raised.
    """
    from resolvent_lab.experiments.report import write_report  # needs matplotlib, which training does not

    if attacks is None and available() and not quick:
        attacks = "full"
    failed = None
    try:
        train(experiment, quick, theta, seeds, jobs, out, attacks, attack_images, verbose, **images)
    except SweepError as error:
        failed = error
    results = collect(out)
    write_summary(out, results)
    report = write_report(out, results, _processes(jobs))
    print(f"{verdicts(results)}\n\nThe report: {report}")
    if failed:
        raise failed


def _processes(jobs: int | None) -> int:
    return (os.cpu_count() or 1) if jobs is None else jobs
