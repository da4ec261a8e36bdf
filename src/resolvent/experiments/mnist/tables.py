"""The paper's table and its companions: accuracy by column and level of noise."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import cast

from resolvent.experiments.mnist.config import MnistConfig
from resolvent.experiments.mnist.measure import HARDER, SIGMAS, cell
from resolvent.experiments.mnist.paper import published
from resolvent.experiments.run import Run
from resolvent.experiments.spread import spread

Rows = list[list[str]]

_PARTS = {"train": "training images", "held_out": "held-out images"}


def tables(runs: Sequence[Run]) -> dict[str, Rows]:
    """By title; a row for each column of the paper's table and each baseline, whatever the seed."""
    columns = by_column(runs)
    found = {
        f"Top-{top} accuracy on {words}, noise {'clamped to [0, 1]' if clamped else 'not clamped'}": _accuracies(
            columns, part, top, clamped
        )
        for clamped in (False, True)
        for part, words in _PARTS.items()
        for top in (1, 2)
    }
    return found | {"Networks and solves": _work(columns)}


def by_column(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each column, in the order in which the columns first appear, those of the paper first."""
    columns: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (not run.config.name.startswith("theta"), run.config.name)):
        columns.setdefault(cast(MnistConfig, run.config).column, []).append(run)
    return columns


def _accuracies(columns: Mapping[str, Sequence[Run]], part: str, top: int, clamped: bool) -> Rows:
    sigmas = (*SIGMAS, *HARDER)
    rows = [["column", *(f"sigma = {sigma:g}" for sigma in sigmas), "seeds"]]
    for column, runs in columns.items():
        cells = [_cell(column, runs, part, sigma, top, clamped) for sigma in sigmas]
        rows.append([column, *cells, str(len(runs))])
    return rows


def _cell(column: str, runs: Sequence[Run], part: str, sigma: float, top: int, clamped: bool) -> str:
    measured = spread([run.metrics[cell(part, sigma, top, clamped)] for run in runs], ".1f")
    paper = published(column, sigma, top) if part == "train" and not clamped else None
    return measured if paper is None else f"{measured} (paper {paper:g})"


def _work(columns: Mapping[str, Sequence[Run]]) -> Rows:
    rows = [
        [
            *("column", "parameters", "theta", "data", "steps a layer", "evaluations a layer"),
            *("failed solves in training", "failed solves measured", "seconds a run", "seeds"),
        ]
    ]
    for column, runs in columns.items():
        config = cast(MnistConfig, runs[0].config)
        thetas = runs[0].metrics["thetas"]
        rows.append(
            [
                column,
                str(runs[0].metrics["parameters"]),
                ", ".join(f"{theta:.3g}" for theta in sorted(set(thetas))),
                f"{config.data}, {config.held_out}",
                spread([run.metrics["solver_steps"] for run in runs]),
                spread([run.metrics["evaluations"] for run in runs]),
                f"{sum(sum(run.curves()['failed_solves']) for run in runs):g}",
                f"{sum(run.metrics['failed_solves'] for run in runs):g}",
                f"{fmean(run.seconds for run in runs):.0f}",
                str(len(runs)),
            ]
        )
    return rows
