"""Example 3: periodic orbits of predator and prey, learned and extrapolated far beyond the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from resolvent_lab.experiments.claim import Claim
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.lotka_volterra.claims import CLAIMS
from resolvent_lab.experiments.lotka_volterra.model import (
    LotkaVolterra,
    LotkaVolterraConfig,
    configs,
    data,
    predicted_coefficient,
)
from resolvent_lab.experiments.tables import Column, by_settings, metric

_DESCRIPTION = (
    "Fifty layers with h = 0.2 fit five orbits of the Lotka-Volterra system on [0, 10] with 51 points each. They share "
    "one perceptron of width 20 (ReLU, 1780 parameters), without regularisation. Training uses Adam with full "
    "batches. The layers are continued to t = 200; continuous trajectories integrate the learned field by RK4 with "
    "steps of 0.04. The late radius is the mean distance from the equilibrium after t = 100, relative to the true "
    "orbit. Inner orbits drift in the extrapolation even where the outer orbit, which the paper shows, does not."
)

_CAPTIONS = {
    "lotka-volterra-data": "Figure 6, right: the field and the five orbits with their 51 points.",
    "lotka-volterra-fields": "Figure 10: learned fields with the trajectories of the layers, and eigenvalues of h F' "
    "along them over the stability region.",
    "lotka-volterra-extrapolation": "Figure 11: the outer orbit continued to t = 200, by the layers (top) and in the "
    "learned field as a differential equation (bottom).",
}

_COLUMNS: Mapping[str, Column] = {
    "loss": metric("loss"),
    "coefficient of f'f": metric("coefficient"),
    "predicted": lambda run: predicted_coefficient(run.config.theta),
    "div F - div f": metric("divergence"),
    "late radius, inner orbit": lambda run: run.metrics["late_radius"][0],
    "outer orbit": lambda run: run.metrics["late_radius"][-1],
    "distance of layers, inner orbit": lambda run: run.metrics["orbit_distance"][0],
    "outer": lambda run: run.metrics["orbit_distance"][-1],
    "iterations per layer": metric("iterations"),
    "restarts": metric("restarts"),
}


def _figures(runs: Sequence[Any]) -> dict[str, Any]:
    from resolvent_lab.experiments.lotka_volterra.figures import figures  # needs matplotlib, which training does not

    return figures(runs)


def _shown_in(claim: Claim) -> str:
    if claim.statement.startswith("Theory"):
        return ""
    return "Figure 11" if "orbit" in claim.quantity else "Figure 10"


EXPERIMENT = Experiment(
    name="lotka-volterra",
    title="Predator and prey",
    description=_DESCRIPTION,
    config=LotkaVolterraConfig,
    configs=configs,
    data=data,
    network=LotkaVolterra,
    claims=CLAIMS,
    tables=by_settings(("theta",), _COLUMNS),
    figures=_figures,
    shown_in=_shown_in,
    captions=_CAPTIONS,
    duration=3,
)
