"""Example 1: regression of a sine, with a penalty on the divergence of the field."""

from collections.abc import Mapping, Sequence
from typing import Any

from resolvent_lab.experiments.claim import Claim
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.regression.claims import CLAIMS
from resolvent_lab.experiments.regression.model import Regression, RegressionConfig, configs, data
from resolvent_lab.experiments.tables import Column, by_settings, metric

_DESCRIPTION = (
    "Twenty points of the sine on [-5, 5], as states (x, 0) in the plane, pass through five theta layers with "
    "h = 1 that share one perceptron of width 10 (GELU, 380 parameters). The loss is the mean squared error of the "
    "second component, plus alpha_div times the divergence, weighted with (t/T)², plus 0.1 times the squared "
    "Jacobian along the trajectories, both estimated with one Gaussian probe. Training uses Adam with full batches. "
    "Iterations are counted in the trained networks: L-BFGS with the authors' tolerance, |r|² ≤ 1e-6, and Newton's "
    "method, the library's default for two unknowns, with its own tolerance, |r| ≤ 1e-6 of the scale. The spectrum of "
    "this field is not bounded. Where it reaches 1 / (theta h), a layer folds the plane; restarts is the number of "
    "epochs with a fallback: from all layers at once to layers one by one, and from there to pseudo-transient "
    "continuation, which gets past a fold."
)

_CAPTIONS = {
    "regression-data": "Figure 6, left: the data.",
    "regression-training": "Figure 7: error, divergence and Jacobian in training, as estimated in every tenth epoch.",
    "regression-iterations": "Figure 7: nonlinear iterations against theta and alpha_div.",
    "regression-fields": "Figure 8: fields, trajectories of the data, the line of starting points (blue), its image "
    "(red), and the band of ±0.2 around it after every layer.",
    "regression-spectra": "Figure 8: eigenvalues of the Jacobian along trajectories, from the data (red) and from 61 "
    "points of [-6, 6] (blue, mostly covered), over the stability region |R| ≤ 1 (grey) and the disc |z| < 1/theta "
    "where the layer's map is contractive (red).",
    "regression-spectra-stages": "The same at the stages (1 - theta) y_t + theta y_(t+1), where layers are linearised.",
}

_COLUMNS: Mapping[str, Column] = {
    "mean squared error": metric("mse"),
    "divergence, weighted": metric("divergence"),
    "divergence": metric("unweighted_divergence"),
    "Jacobian": metric("jacobian"),
    "min Re λ": metric("leftmost_eigenvalue"),
    "max |R|": metric("largest_growth"),
    "band ratio": metric("band_ratio"),
    "sign changes": metric("sign_flips"),
    "L-BFGS iterations": metric("lbfgs_iterations"),
    "default solver's": metric("iterations"),
    "restarts": metric("restarts"),
}


def _figures(runs: Sequence[Any]) -> dict[str, Any]:
    from resolvent_lab.experiments.regression.figures import figures  # needs matplotlib, which training does not

    return figures(runs)


def _shown_in(claim: Claim) -> str:
    curves = ("mean squared error", "divergence", "error at", "L-BFGS")
    return "Figure 7" if any(word in claim.quantity for word in curves) else "Figure 8"


EXPERIMENT = Experiment(
    name="regression",
    title="Regression",
    description=_DESCRIPTION,
    config=RegressionConfig,
    configs=configs,
    data=data,
    network=Regression,
    claims=CLAIMS,
    tables=by_settings(("theta", "alpha_div"), _COLUMNS),
    figures=_figures,
    shown_in=_shown_in,
    captions=_CAPTIONS,
    duration=1,
)
