"""Example 2: the flow of a stiff equation, learned by twenty layers with separate weights."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from resolvent_lab.experiments.claim import Claim
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.stiff.claims import CLAIMS
from resolvent_lab.experiments.stiff.model import Stiff, StiffConfig, configs, data, predicted_slope
from resolvent_lab.experiments.tables import Column, by_settings, metric

_DESCRIPTION = (
    "Twenty layers with h = 0.1 and separate weights learn the flow of z' = -20 (z - cos min(t, 2)) from 100 "
    "trajectories, five from each time cell. Their fields are F^{-25,-15} with perceptrons of width 4 (ReLU, "
    "normalised). The loss is the mean squared error at 2, 4 or 10 points plus 0.1/20 times the squared differences "
    "of neighbouring layers. Training uses Adam, with one time cell per step. An exact fit needs the slope "
    "(E - 1) / (h (1 + theta (E - 1))), E = exp(-2), which is -8.65, -15.23 and -63.9 for theta = 0, 0.5 and 1. Only "
    "the second is within the limits; the table compares slopes with the nearest one allowed. Continuous "
    "trajectories integrate the learned field by RK4 with steps of 0.0005. Restarts is the number of training steps in "
    "which the layers were not solved all at once, but one by one."
)

_CAPTIONS = {
    "stiff-data": "Figure 6, middle: the field and 100 trajectories, with a dot where each starts.",
    "stiff-trajectories": "Figure 9: the trajectory from zero through the layers (top), and in the learned field as a "
    "differential equation (bottom); dots are at the times of the training points.",
    "stiff-slopes": "Mean slope of each layer's field, and the slope in [-25, -15] that fits the flow best (dashed).",
}

_COLUMNS: Mapping[str, Column] = {
    "error of layers": metric("discrete_error"),
    "t ≤ 0.5": metric("discrete_error_early"),
    "t ≥ 1": metric("discrete_error_late"),
    "continuous error": metric("continuous_error"),
    "turning points": metric("turning_points"),
    "mean slope": lambda run: fmean(run.metrics["slopes"]),
    "predicted": lambda run: predicted_slope(run.config.theta),
    "smallest R": metric("growth_low"),
    "largest R": metric("growth_high"),
    "evaluations per layer": metric("evaluations"),
    "restarts": metric("restarts"),
}


def _figures(runs: Sequence[Any]) -> dict[str, Any]:
    from resolvent_lab.experiments.stiff.figures import figures  # needs matplotlib, which training does not

    return figures(runs)


def _shown_in(claim: Claim) -> str:
    return "" if claim.statement.startswith("Theory") else "Figure 9"


EXPERIMENT = Experiment(
    name="stiff",
    title="A stiff system",
    description=_DESCRIPTION,
    config=StiffConfig,
    configs=configs,
    data=data,
    network=Stiff,
    claims=CLAIMS,
    tables=by_settings(("points", "theta"), _COLUMNS),
    figures=_figures,
    main_figure="stiff-trajectories",
    shown_in=_shown_in,
    captions=_CAPTIONS,
    duration=2,
)
