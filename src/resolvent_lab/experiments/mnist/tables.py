"""The paper's table and its companions: accuracy by column and level of noise."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, cast

from resolvent_lab.experiments.experiment import Rows
from resolvent_lab.experiments.mnist.columns import place
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.measure import HARDER, SIGMAS, cell
from resolvent_lab.experiments.mnist.paper import published
from resolvent_lab.experiments.network import Metrics
from resolvent_lab.experiments.tables import spread

if TYPE_CHECKING:
    from resolvent_lab.experiments.run import Run

_PARTS = {"train": "training images", "held_out": "held-out images"}


def tables(runs: "Sequence[Run]") -> dict[str, Rows]:
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
    return found | {"Networks and solves": _work(columns)} | _ratios(columns) | _robustness(columns)


def by_column(runs: "Sequence[Run]") -> "dict[str, list[Run]]":
    """The runs of each column, family by family, those of the paper first."""
    columns: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        columns.setdefault(cast(MnistConfig, run.config).column, []).append(run)
    return {column: columns[column] for column in sorted(columns, key=place)}


def _accuracies(columns: "Mapping[str, Sequence[Run]]", part: str, top: int, clamped: bool) -> Rows:
    sigmas = (*SIGMAS, *HARDER)
    rows = [["column", *(f"sigma = {sigma:g}" for sigma in sigmas), "seeds"]]
    for column, runs in columns.items():
        cells = [_cell(column, runs, part, sigma, top, clamped) for sigma in sigmas]
        rows.append([column, *cells, str(len(runs))])
    return rows


def _cell(column: str, runs: "Sequence[Run]", part: str, sigma: float, top: int, clamped: bool) -> str:
    measured = spread([run.metrics[cell(part, sigma, top, clamped)] for run in runs], ".1f")
    paper = published(column, sigma, top) if part == "train" and not clamped else None
    return measured if paper is None else f"{measured} (paper {paper:g})"


def _work(columns: "Mapping[str, Sequence[Run]]") -> Rows:
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


def _ratios(columns: "Mapping[str, Sequence[Run]]") -> dict[str, Rows]:
    """How noise fares on its way through the networks."""
    measured = {
        column: [r.metrics["noise_to_signal"] for r in runs if "noise_to_signal" in r.metrics]
        for column, runs in columns.items()
    }
    measured = {column: records for column, records in measured.items() if records}
    places = list(dict.fromkeys(place for records in measured.values() for place in records[0] if place != "flatten"))
    rows = [["column", *places, "seeds"]]
    for column, records in measured.items():
        cells = [
            spread([record[place] for record in records], ".2f") if place in records[0] else "" for place in places
        ]
        rows.append([column, *cells, str(len(records))])
    return (
        {"Power of noise (sigma = 0.5) over that of the signal, behind each part of the network": rows}
        if measured
        else {}
    )


def _robustness(columns: "Mapping[str, Sequence[Run]]") -> dict[str, Rows]:
    """The tables of those networks that were attacked, if any were."""
    attacked = {
        column: [run.metrics["robustness"] for run in runs if "robustness" in run.metrics]
        for column, runs in columns.items()
    }
    attacked = {column: records for column, records in attacked.items() if records}
    if not attacked:
        return {}
    first = next(iter(attacked.values()))[0]
    count, size = first["asked"]["images"], first["asked"]["attacks"]
    return {
        f"Accuracy under the worst of all attacks ({size}) on {count} held-out images": _attacks(attacked),
        f"Accuracy on {count} held-out images with corruptions": _corruptions(attacked),
    }


def _attacks(attacked: Mapping[str, Sequence[Metrics]]) -> Rows:
    budgets = list(next(iter(attacked.values()))[0]["attacks"])
    rows = [["column", "clean", *budgets, "gradients masked", "certificates refuted", "Lipschitz bound", "seeds"]]
    for column, records in attacked.items():
        worst = [_percent([record["attacks"][budget]["worst case"] for record in records]) for budget in budgets]
        masked = [max(attack["masked"] for attack in record["attacks"].values()) for record in records]
        refuted = sum(attack["certificates refuted"] for record in records for attack in record["attacks"].values())
        bounds = [record["certificates"]["lipschitz"] for record in records]
        bound = "none" if None in bounds else spread(bounds)
        clean = _percent([record["clean"]["top 1"] for record in records])
        rows.append([column, clean, *worst, _percent(masked), str(refuted), bound, str(len(records))])
    return rows


def _corruptions(attacked: Mapping[str, Sequence[Metrics]]) -> Rows:
    severities = [
        (name, severity)
        for name, levels in next(iter(attacked.values()))[0]["corruptions"].items()
        for severity in levels
    ]
    rows = [["column", *(f"{name} {severity}" for name, severity in severities), "seeds"]]
    for column, records in attacked.items():
        cells = [_percent([r["corruptions"][name][severity] for r in records]) for name, severity in severities]
        rows.append([column, *cells, str(len(records))])
    return rows


def _percent(fractions: Sequence[float]) -> str:
    return spread([100 * value for value in fractions], ".1f")
