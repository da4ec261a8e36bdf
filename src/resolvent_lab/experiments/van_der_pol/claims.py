"""What is claimed about the learned oscillator."""

from resolvent_lab.experiments.claim import Claim, Runs
from resolvent_lab.experiments.van_der_pol.model import ADAPTIVE, ONE_STEP


def _bounded(runs: Runs, metric: str) -> float:
    (value,) = runs.all(metric, lambda config: config.bounded)
    return float(value)


def _one_step(runs: Runs, metric: str, method: str) -> float:
    (value,) = runs.all(metric, lambda config: config.method == method)
    return float(value)


CLAIMS = (
    Claim(
        "An implicit method trains the stiff oscillator, if its steps adapt, short segments come first, and the loss "
        "is bounded:",
        "error of the period, relative",
        lambda runs: _bounded(runs, "period_error"),
        high=0.01,
        limit_from="own",
    ),
    Claim(
        "also from held-out initial states,",
        "median error of held-out states",
        lambda runs: _bounded(runs, "median_error"),
        high=0.01,
        limit_from="own",
    ),
    Claim(
        "and it learns how stiff the oscillator is.",
        "fastest rate of the learned field over the true one",
        lambda runs: _bounded(runs, "stiffness"),
        0.8,
        1.25,
        limit_from="own",
    ),
    *(
        Claim(
            f"With one step of {method} for each segment it fails.",
            "median error of held-out states over that of the first training",
            lambda runs, method=method: (  # type: ignore[misc]
                _one_step(runs, "median_error", method) / _bounded(runs, "median_error")
            ),
            low=5.0,
            limit_from="own",
        )
        for method in ONE_STEP
    ),
    Claim(
        "With adaptive steps, but all segments from the start, it fails.",
        "median error of held-out states over that of the first training",
        lambda runs: runs("median_error", method=ADAPTIVE, stages=0) / _bounded(runs, "median_error"),
        low=5.0,
        limit_from="own",
    ),
)
