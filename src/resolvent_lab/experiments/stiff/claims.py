"""The claims of the paper about Example 2, and predictions of its theory."""

from statistics import fmean

from resolvent_lab.experiments.claim import Claim, Runs
from resolvent_lab.experiments.stiff.model import HIGH, LOW, THETAS, predicted_slope


def _error(theta: float, metric: str, statement: str, low: float, high: float) -> Claim:
    kind = metric.replace("_error", "").replace("_early", ", t <= 0.5").replace("_late", ", t >= 1")
    return Claim(
        statement,
        f"RMS error from z(0) = 0, {kind}, theta = {theta:g}, 10 points",
        lambda runs: runs(metric, theta=theta, points=10),
        low,
        high,
        "figure",
    )


def _quotient(runs: Runs, metric: str, one: float, other: float) -> float:
    return float(runs(metric, theta=one, points=10) / runs(metric, theta=other, points=10))


def _improvement(runs: Runs, metric: str, theta: float) -> float:
    return float(runs(metric, theta=theta, points=10) / runs(metric, theta=theta, points=2))


def _approach(runs: Runs, theta: float) -> float:
    middle = (LOW + HIGH) / 2
    return (fmean(runs("slopes", theta=theta, points=10)) - middle) * (1 if predicted_slope(theta) > middle else -1)


_INF = float("inf")

CLAIMS = (
    _error(0.0, "discrete_error_early", "The explicit network is unstable on the transient;", 0.3, _INF),
    _error(0.5, "discrete_error_early", "the midpoint network is stable and accurate,", -_INF, 0.06),
    _error(1.0, "discrete_error_early", "that of theta = 1 stable.", -_INF, 0.2),
    Claim(
        "The explicit network improves on the slow manifold",
        "its error at t >= 1 over that at t <= 0.5, theta = 0, 10 points",
        lambda runs: (
            runs("discrete_error_late", theta=0.0, points=10) / runs("discrete_error_early", theta=0.0, points=10)
        ),
        high=1.0,
    ),
    Claim(
        "but stays the worst.",
        "its error at t >= 1 over the larger one of the implicit networks, 10 points",
        lambda runs: min(_quotient(runs, "discrete_error_late", 0.0, theta) for theta in (0.5, 1.0)),
        low=1.0,
    ),
    _error(0.5, "continuous_error", "In continuous time the field of the midpoint network is accurate,", -_INF, 0.06),
    _error(1.0, "continuous_error", "that of theta = 1 satisfactory,", -_INF, 0.12),
    _error(0.0, "continuous_error", "that of the explicit network corrupted.", 0.25, _INF),
    Claim(
        "The midpoint rule is observably more accurate.",
        "continuous error of theta = 1 over that of theta = 0.5, 10 points",
        lambda runs: _quotient(runs, "continuous_error", 1.0, 0.5),
        low=1.0,
    ),
    *(
        Claim(
            f"More training points make the implicit network better, theta = {theta:g}.",
            "continuous error with 10 points over that with 2",
            lambda runs, theta=theta: _improvement(runs, "continuous_error", theta),  # type: ignore[misc]
            high=1.0,
        )
        for theta in (0.5, 1.0)
    ),
    Claim(
        "The explicit network oscillates:",
        "largest factor R of a layer, theta = 0; all are negative",
        lambda runs: max(runs.all("growth_high", lambda c: c.theta == 0)),
        high=0.0,
        limit_from="theory",
    ),
    Claim(
        "its trajectory turns back and forth,",
        "turning points of the trajectory from z(0) = 0, theta = 0, 10 points",
        lambda runs: runs("turning_points", theta=0.0, points=10),
        low=6.0,
        limit_from="figure",
    ),
    Claim(
        "those of implicit networks do not.",
        "turning points, the larger of theta = 0.5 and 1, 10 points",
        lambda runs: max(runs("turning_points", theta=theta, points=10) for theta in (0.5, 1.0)),
        high=5.0,
        limit_from="figure",
    ),
    Claim(
        "The slopes of F^{-25,-15} keep within its limits:",
        "smallest slope of all layers and runs",
        lambda runs: min(runs.all("slope_low", lambda c: True)),
        low=LOW * (1 + 1e-4),
        limit_from="theory",
    ),
    Claim(
        "on both sides.",
        "largest slope of all layers and runs",
        lambda runs: max(runs.all("slope_high", lambda c: True)),
        high=HIGH * (1 - 1e-4),
        limit_from="theory",
    ),
    *(
        Claim(
            f"Theory: the slopes go towards the one that fits the flow best, {predicted_slope(theta):.4g} for "
            f"theta = {theta:g}.",
            "how far the mean slope has gone there from the middle, -20, 10 points",
            lambda runs, theta=theta: _approach(runs, theta),  # type: ignore[misc]
            low=0.0,
            limit_from="own",
        )
        for theta in THETAS
    ),
)
