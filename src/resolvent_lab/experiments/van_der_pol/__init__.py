"""The stiff van der Pol oscillator, learned with `rs.odeint`, and with one step for each segment of the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.tables import Column, by_settings, metric
from resolvent_lab.experiments.van_der_pol.claims import CLAIMS
from resolvent_lab.experiments.van_der_pol.model import VanDerPol, VanDerPolConfig, configs, data

_DESCRIPTION = (
    "Not in the paper. Fronk & Petzold (Training stiff neural ordinary differential equations with explicit "
    "exponential integration methods, 2024) report that implicit single-step schemes failed to train the stiff van der "
    "Pol oscillator. Here mu = 1000, and the states are voltage and current, x' = mu (x - x^3/3 - w), w' = x / mu. In "
    "the variables x and x' the slopes have a range of 1e6, of which eight digits would have to be learned for 1 % of "
    "the speed on the slow branches. Ten trajectories from random states are observed at 20 times each, equally spaced "
    "in log t from 3e-5 to 1600, which is a period. A perceptron with two hidden layers of 16 units (354 weights) "
    "begins as the zero field. It is fitted to the 200 segments between neighbouring points by the "
    "Levenberg-Marquardt method. Five trainings differ in the method that integrates a segment, adaptive steps of "
    "rs.odeint with RADAU5 (rtol 1e-3) or one step, in whether short segments come first, and in whether the loss of a "
    "segment is bounded: r / sqrt(1 + |r|^2 / 0.01) in place of its errors r. All learned fields are "
    "then integrated as differential equations, from 20 held-out states to the 20 times. The stiffness is the fastest "
    "rate of the field at the last of these states, in the median, over the true one."
)

_CAPTIONS = {
    "van-der-pol-cycles": "True (grey) and learned (dashed) trajectories from (2, 0): in the plane (top), and the "
    "voltage over time (bottom)."
}

_COLUMNS: Mapping[str, Column] = {
    "root of the loss": lambda run: run.metrics["loss"] ** 0.5,
    "median error": metric("median_error"),
    "90 % of the errors are below": metric("large_error"),
    "error of the period": metric("period_error"),
    "stiffness over the true one": metric("stiffness"),
}


def _figures(runs: Sequence[Any]) -> dict[str, Any]:
    from resolvent_lab.experiments.van_der_pol.figures import figures  # needs matplotlib, which training does not

    return figures(runs)


EXPERIMENT = Experiment(
    name="van-der-pol",
    title="The stiff van der Pol oscillator",
    description=_DESCRIPTION,
    config=VanDerPolConfig,
    configs=configs,
    data=data,
    network=VanDerPol,
    claims=CLAIMS,
    tables=by_settings(("method", "stages", "bounded"), _COLUMNS),
    figures=_figures,
    captions=_CAPTIONS,
    duration=3,
    in_demo=False,
)
