"""The tables of the report: what was measured, as mean and spread over the seeds."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from resolvent_lab.experiments import lotka_volterra
from resolvent_lab.experiments.claims import Outcome
from resolvent_lab.experiments.failures import Failure
from resolvent_lab.experiments.mnist.tables import tables as noise_tables
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.spread import spread
from resolvent_lab.experiments.stiff import predicted_slope

Column = Callable[[Run], float]


def claim_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Rows of text, the header first, the verdict last; a row for each claim."""
    rows = [["claim", "measured is", "value", "criterion", "seeds", "verdict"]]
    for outcome in outcomes:
        value = ", ".join(f"{value:.3g}" for value in outcome.values) or "none"
        claim = outcome.claim
        rows.append([claim.statement, claim.quantity, value, claim.criterion, outcome.seeds, outcome.verdict])
    return rows


def failure_rows(failures: Sequence[Failure]) -> list[list[str]]:
    """Rows of text, the header first; a row for each run that failed."""
    return [["failed run", "error"], *([failure.config.name, failure.error] for failure in failures)]


def tables(experiment: str, runs: Sequence[Run]) -> dict[str, list[list[str]]]:
    """All tables of an experiment by title."""
    return noise_tables(runs) if experiment == "mnist" else {"Measurements": table(experiment, runs)}


def table(experiment: str, runs: Sequence[Run]) -> list[list[str]]:
    """Rows of text, the header first; a row for each configuration, whatever its seed."""
    settings, columns = _SETTINGS[experiment], _COLUMNS[experiment]
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(getattr(run.config, name) for name in settings), []).append(run)
    rows = [[*(name.replace("_", " ") for name in settings), *columns, "seconds a run", "seeds"]]
    for key in sorted(groups):
        group = groups[key]
        cells = [spread([float(column(run)) for run in group]) for column in columns.values()]
        seconds = f"{fmean(run.seconds for run in group):.0f}"
        rows.append([*(f"{value:g}" for value in key), *cells, seconds, str(len(group))])
    return rows


def _metric(name: str) -> Column:
    return lambda run: run.metrics[name]


_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "regression": ("theta", "alpha_div"),
    "stiff": ("points", "theta"),
    "lotka-volterra": ("theta",),
}

_COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "regression": {
        "mean squared error": _metric("mse"),
        "divergence, weighted": _metric("divergence"),
        "divergence": _metric("unweighted_divergence"),
        "Jacobian": _metric("jacobian"),
        "min Re λ": _metric("leftmost_eigenvalue"),
        "max |R|": _metric("largest_growth"),
        "band ratio": _metric("band_ratio"),
        "sign changes": _metric("sign_flips"),
        "L-BFGS iterations": _metric("lbfgs_iterations"),
        "default solver's": _metric("iterations"),
        "restarts": _metric("restarts"),
    },
    "stiff": {
        "error of layers": _metric("discrete_error"),
        "t ≤ 0.5": _metric("discrete_error_early"),
        "t ≥ 1": _metric("discrete_error_late"),
        "continuous error": _metric("continuous_error"),
        "turning points": _metric("turning_points"),
        "mean slope": lambda run: fmean(run.metrics["slopes"]),
        "predicted": lambda run: predicted_slope(run.config.theta),
        "smallest R": _metric("growth_low"),
        "largest R": _metric("growth_high"),
        "evaluations a layer": _metric("evaluations"),
        "restarts": _metric("restarts"),
    },
    "lotka-volterra": {
        "loss": _metric("loss"),
        "coefficient of f'f": _metric("coefficient"),
        "predicted": lambda run: lotka_volterra.predicted_coefficient(run.config.theta),
        "div F - div f": _metric("divergence"),
        "late radius, inner orbit": lambda run: run.metrics["late_radius"][0],
        "outer orbit": lambda run: run.metrics["late_radius"][-1],
        "distance of layers, inner orbit": lambda run: run.metrics["orbit_distance"][0],
        "outer": lambda run: run.metrics["orbit_distance"][-1],
        "iterations a layer": _metric("iterations"),
        "restarts": _metric("restarts"),
    },
}
