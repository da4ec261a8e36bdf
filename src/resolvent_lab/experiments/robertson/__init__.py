"""Robertson's reaction, learned from fifty points with `rs.odeint`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.robertson.claims import CLAIMS
from resolvent_lab.experiments.robertson.model import Robertson, RobertsonConfig, configs, data
from resolvent_lab.experiments.tables import Column, by_settings, metric

_DESCRIPTION = (
    "Not in the paper. Robertson's reaction has rates of 0.04, 1e4 and 3e7. Five trajectories from t = 0 to 1e5 are "
    "observed at ten times each, equally spaced in log t: fifty points. A perceptron with a hidden layer of four "
    "units and a linear bypass maps logarithms of the species to logarithms of six rates of transfer between them, so "
    "that mass is conserved. It has 76 weights, none of which knows the reaction. Segments between neighbouring points "
    "are integrated by rs.odeint with RADAU5 (rtol 1e-3), each with its own steps, and fitted by the "
    "Levenberg-Marquardt method with exact gradients of the accepted steps; segments of short duration come first. "
    "The last 60 of 180 epochs add a penalty on the output weights of the hidden layer, whose weight falls from 0.1 to "
    "0.001. "
    "Errors are those on 20 held-out initial states at 40 times, relative to the largest value of the species on "
    "the trajectory. dopri5 of torchdiffeq integrates the learned field for comparison, to a much earlier time."
)

_CAPTIONS = {
    "robertson-species": "Species on held-out trajectories: exact (grey) and learned (dashed), and the points of the "
    "data (dots), which belong to other trajectories."
}


def _cost(method: str, quantity: str) -> Column:
    return lambda run: run.metrics["peer"].get(method, {}).get(quantity, math.nan)


_COLUMNS: Mapping[str, Column] = {
    "error of a": lambda run: run.metrics["errors"][0],
    "b": lambda run: run.metrics["errors"][1],
    "c": lambda run: run.metrics["errors"][2],
    "calls to 1e5": metric("evaluations"),
    "seconds": metric("seconds"),
    "calls to the earlier time": _cost("odeint", "evaluations"),
    "seconds to it": _cost("odeint", "seconds"),
    "dopri5: calls": _cost("dopri5", "evaluations"),
    "dopri5: seconds": _cost("dopri5", "seconds"),
}


def _figures(runs: Sequence[Any]) -> dict[str, Any]:
    from resolvent_lab.experiments.robertson.figures import figures  # needs matplotlib, which training does not

    return figures(runs)


EXPERIMENT = Experiment(
    name="robertson",
    title="Robertson's reaction",
    description=_DESCRIPTION,
    config=RobertsonConfig,
    configs=configs,
    data=data,
    network=Robertson,
    claims=CLAIMS,
    tables=by_settings(("peer_end",), _COLUMNS),
    figures=_figures,
    captions=_CAPTIONS,
    duration=3,
    in_demo=False,
)
