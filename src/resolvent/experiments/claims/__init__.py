"""The claims of the paper, experiment by experiment."""

from collections.abc import Iterator

from resolvent.experiments.claims.claim import Claim as Claim
from resolvent.experiments.claims.claim import Outcome as Outcome
from resolvent.experiments.claims.claim import judge as judge
from resolvent.experiments.claims.lotka_volterra import CLAIMS as _LOTKA_VOLTERRA
from resolvent.experiments.claims.mnist import CLAIMS as _MNIST
from resolvent.experiments.claims.regression import CLAIMS as _REGRESSION
from resolvent.experiments.claims.stiff import CLAIMS as _STIFF
from resolvent.experiments.results import Results

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "regression": _REGRESSION,
    "stiff": _STIFF,
    "lotka-volterra": _LOTKA_VOLTERRA,
    "mnist": _MNIST,
}


def judged(results: Results) -> Iterator[tuple[str, Results, list[Outcome]]]:
    """Each experiment that has runs, with its part of the results and what becomes of its claims."""
    for experiment, claims in CLAIMS.items():
        part = results.of(experiment)
        if part.runs:
            yield experiment, part, judge(claims, part)
