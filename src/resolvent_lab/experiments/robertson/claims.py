"""What is claimed about the learned reaction."""

from resolvent_lab.experiments.claim import Claim, NotRunError, Runs


def _dopri5(runs: Runs, quantity: str) -> float:
    costs = runs("peer")
    if "dopri5" not in costs:
        raise NotRunError("torchdiffeq is not installed")
    return float(costs["dopri5"][quantity] / costs["odeint"][quantity])


CLAIMS = (
    Claim(
        "A network learns Robertson's reaction from fifty points: the worst species is within 1 %.",
        "largest error on held-out initial states, relative to the largest value of the species there",
        lambda runs: runs("worst_error"),
        high=0.01,
        limit_from="own",
    ),
    Claim(
        "An explicit method is no substitute: it calls the learned field far more often,",
        "calls of dopri5 over those of odeint, to the same time",
        lambda runs: _dopri5(runs, "evaluations"),
        low=10.0,
        limit_from="own",
    ),
    Claim(
        "and takes longer, even to this early time.",
        "seconds of dopri5 over those of odeint, to the same time",
        lambda runs: _dopri5(runs, "seconds"),
        low=3.0,
        limit_from="own",
    ),
)
