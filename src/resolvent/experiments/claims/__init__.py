"""The claims of the paper, experiment by experiment."""

from resolvent.experiments.claims.claim import Claim as Claim
from resolvent.experiments.claims.claim import Outcome as Outcome
from resolvent.experiments.claims.claim import judge as judge
from resolvent.experiments.claims.lotka_volterra import CLAIMS as _LOTKA_VOLTERRA
from resolvent.experiments.claims.mnist import CLAIMS as _MNIST
from resolvent.experiments.claims.regression import CLAIMS as _REGRESSION
from resolvent.experiments.claims.stiff import CLAIMS as _STIFF

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "regression": _REGRESSION,
    "stiff": _STIFF,
    "lotka-volterra": _LOTKA_VOLTERRA,
    "mnist": _MNIST,
}
