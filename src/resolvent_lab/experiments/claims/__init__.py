"""The claims of the paper, experiment by experiment."""

from collections.abc import Iterator

from resolvent_lab.experiments.claims.claim import Claim as Claim
from resolvent_lab.experiments.claims.claim import Outcome as Outcome
from resolvent_lab.experiments.claims.claim import judge as judge
from resolvent_lab.experiments.claims.lotka_volterra import CLAIMS as _LOTKA_VOLTERRA
from resolvent_lab.experiments.claims.mnist import CLAIMS as _MNIST
from resolvent_lab.experiments.claims.regression import CLAIMS as _REGRESSION
from resolvent_lab.experiments.claims.stiff import CLAIMS as _STIFF
from resolvent_lab.experiments.results import Results

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
