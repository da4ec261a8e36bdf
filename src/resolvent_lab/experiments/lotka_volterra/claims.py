"""The claims of the paper about Example 3, and predictions of its theory."""

from resolvent_lab.experiments.claim import Claim, Runs
from resolvent_lab.experiments.lotka_volterra.model import THETAS, predicted_coefficient

_INF = float("inf")


def _coefficient(theta: float) -> Claim:
    predicted = predicted_coefficient(theta)
    return Claim(
        f"Theory: the learned field is f - h (theta - 1/2) f'f; theta = {theta:g}.",
        "coefficient of f'f in F - f",
        lambda runs: runs("coefficient", theta=theta),
        predicted - 0.03,
        predicted + 0.03,
        "theory",
    )


def _divergence(theta: float, statement: str, low: float, high: float) -> Claim:
    quantity = f"mean divergence of F - f, theta = {theta:g}"
    return Claim(statement, quantity, lambda runs: runs("divergence", theta=theta), low, high, "figure")


def _outer_distance(runs: Runs, theta: float) -> float:
    return float(runs("orbit_distance", theta=theta)[-1])


CLAIMS = (
    Claim(
        "All three networks fit the data accurately.",
        "largest loss over theta",
        lambda runs: max(runs.all("loss", lambda c: True)),
        high=2e-3,
        limit_from="figure",
    ),
    *(_coefficient(theta) for theta in THETAS),
    _divergence(0.0, "The field of the explicit network makes up for its expansion: it is dissipative,", -_INF, -0.02),
    _divergence(0.5, "that of the midpoint network conservative,", -0.02, 0.02),
    _divergence(1.0, "that of theta = 1 overly expanding.", 0.02, _INF),
    Claim(
        "In continuous time orbits of the explicit network's field spiral inwards,",
        "largest late radius over that of the true orbit, theta = 0",
        lambda runs: max(runs("late_radius", theta=0.0)),
        high=0.5,
        limit_from="figure",
    ),
    Claim(
        "those of theta = 1 outwards,",
        "smallest late radius over that of the true orbit, theta = 1",
        lambda runs: min(runs("late_radius", theta=1.0)),
        low=1.8,
        limit_from="figure",
    ),
    Claim(
        "and the midpoint rule alone gives a field for long times:",
        "smallest late radius over that of the true orbit, theta = 0.5",
        lambda runs: min(runs("late_radius", theta=0.5)),
        low=0.5,
        limit_from="figure",
    ),
    Claim(
        "its orbits neither shrink nor grow,",
        "largest late radius over that of the true orbit, theta = 0.5",
        lambda runs: max(runs("late_radius", theta=0.5)),
        high=1.7,
        limit_from="figure",
    ),
    Claim(
        "least of all the outer one, which the paper shows.",
        "late radius of the outer orbit over that of the true one, theta = 0.5",
        lambda runs: runs("late_radius", theta=0.5)[-1],
        0.75,
        1.3,
        "figure",
    ),
    *(
        Claim(
            f"The network extrapolates to t = 200, theta = {theta:g} (the outer orbit, the one that the paper shows).",
            "mean distance from the true orbit at t >= 100",
            lambda runs, theta=theta: _outer_distance(runs, theta),  # type: ignore[misc]
            high=0.35,
            limit_from="figure",
        )
        for theta in THETAS
    ),
)
