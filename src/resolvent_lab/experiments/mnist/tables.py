"""Tables: accuracy by column and noise level, as in the paper, and other measurements."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, cast

from resolvent_lab.experiments.experiment import Rows
from resolvent_lab.experiments.mnist.columns import place
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.measure import HARDER, SIGMAS, cell
from resolvent_lab.experiments.network import Metrics
from resolvent_lab.experiments.tables import spread
from resolvent_lab.robustness import SUMMARY

if TYPE_CHECKING:
    from resolvent_lab.experiments.run import Run

# Table 3 of the paper: accuracies in per cent, on training images, with noise that is not clamped.
_THETAS = (0.0, 0.25, 0.5, 0.75, 1.0)

_TABLE = {
    1: {
        0.0: (100.0, 100.0, 100.0, 100.0, 100.0),
        0.1: (98.2, 99.6, 99.9, 99.9, 99.9),
        0.2: (89.2, 95.7, 96.3, 98.3, 98.4),
        0.3: (74.7, 86.0, 89.3, 93.2, 93.6),
        0.4: (59.3, 74.1, 77.2, 81.8, 84.7),
        0.5: (47.2, 60.4, 64.7, 69.8, 73.0),
    },
    2: {
        0.0: (100.0, 100.0, 100.0, 100.0, 100.0),
        0.1: (99.7, 100.0, 100.0, 100.0, 100.0),
        0.2: (96.7, 99.3, 99.8, 100.0, 100.0),
        0.3: (89.0, 95.2, 97.8, 99.0, 98.8),
        0.4: (75.5, 89.1, 91.1, 94.4, 95.0),
        0.5: (65.7, 79.6, 83.4, 87.1, 87.9),
    },
}

_PARTS = {"train": "training images", "held_out": "held-out images"}


def tables(runs: "Sequence[Run]") -> dict[str, Rows]:
    """All tables by title. Each column of the paper's table and each baseline is a row, over all seeds."""
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
    """The runs of each column, family by family; those of the paper come first."""
    columns: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        columns.setdefault(cast(MnistConfig, run.config).column, []).append(run)
    return {column: columns[column] for column in sorted(columns, key=place)}


def published(column: str, sigma: float, top: int) -> float | None:
    """The paper's number for a column, or None."""
    names = [f"theta{theta:g}" for theta in _THETAS]
    if column not in names or sigma not in _TABLE[top]:
        return None
    return _TABLE[top][sigma][names.index(column)]


def _accuracies(columns: "Mapping[str, Sequence[Run]]", part: str, top: int, clamped: bool) -> Rows:
    sigmas = (*SIGMAS, *HARDER)
    rows = [["column", *(f"sigma = {sigma:g}" for sigma in sigmas), "seeds"]]
    for column, runs in columns.items():
        cells = [_cell(column, runs, part, sigma, top, clamped) for sigma in sigmas]
        rows.append([column, *cells, str(len(runs))])
    return rows


def _cell(column: str, runs: "Sequence[Run]", part: str, sigma: float, top: int, clamped: bool) -> str:
    measured = spread([run.metrics[cell(part, sigma, top, clamped)] for run in runs], ".1f")
    comparable = part == "train" and not clamped and cast(MnistConfig, runs[0].config).data != "own"
    paper = published(column, sigma, top) if comparable else None
    return measured if paper is None else f"{measured} (paper {paper:g})"


def _work(columns: "Mapping[str, Sequence[Run]]") -> Rows:
    rows = [
        [
            *("column", "parameters", "theta", "data", "steps per layer", "evaluations per layer"),
            *("failed solves in training", "failed solves measured", "seconds per run", "seeds"),
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
    """Noise-to-signal ratios after each part of the networks."""
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
    """The tables of attacked networks; none if no network was attacked."""
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
        f"Accuracy under each attack ({size}) on {count} held-out images": _each_attack(attacked),
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


def _each_attack(attacked: Mapping[str, Sequence[Metrics]]) -> Rows:
    """One column for each budget and attack, whatever attacks there are."""
    names = [
        (budget, name)
        for budget, results in next(iter(attacked.values()))[0]["attacks"].items()
        for name, result in results.items()
        if isinstance(result, float) and name not in SUMMARY
    ]
    rows = [["column", *(f"{budget} {name}" for budget, name in names), "seeds"]]
    for column, records in attacked.items():
        cells = [_percent([record["attacks"][budget][name] for record in records]) for budget, name in names]
        rows.append([column, *cells, str(len(records))])
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
