"""What is claimed about the learned oscillator."""

from resolvent_lab.experiments.claim import Claim, Runs
from resolvent_lab.experiments.van_der_pol.model import ADAPTIVE, ONE_STEP


def _in_stages(runs: Runs, metric: str, method: str = ADAPTIVE) -> float:
    (value,) = runs.all(metric, lambda config: config.method == method and config.stages > 0)
    return float(value)


CLAIMS = (
    Claim(
        "An implicit method trains the stiff oscillator, if its steps adapt and short segments come first:",
        "error of the period, relative",
        lambda runs: _in_stages(runs, "period_error"),
        high=0.01,
        limit_from="own",
    ),
    Claim(
        "also from held-out initial states,",
        "median error of held-out states",
        lambda runs: _in_stages(runs, "median_error"),
        high=0.01,
        limit_from="own",
    ),
    Claim(
        "and it learns how stiff the oscillator is.",
        "fastest rate of the learned field over the true one",
        lambda runs: _in_stages(runs, "stiffness"),
        0.8,
        1.25,
        limit_from="own",
    ),
    *(
        Claim(
            f"With one step of {method} for each segment it fails.",
            "median error of held-out states over that with adaptive steps",
            lambda runs, method=method: (  # type: ignore[misc]
                _in_stages(runs, "median_error", method) / _in_stages(runs, "median_error")
            ),
            low=5.0,
            limit_from="own",
        )
        for method in ONE_STEP
    ),
    Claim(
        "With adaptive steps, but all segments from the start, it fails.",
        "median error of held-out states over that with short segments first",
        lambda runs: runs("median_error", method=ADAPTIVE, stages=0) / _in_stages(runs, "median_error"),
        low=5.0,
        limit_from="own",
    ),
)
