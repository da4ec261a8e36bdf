"""Claims of the paper: a number that is measured, and the interval in which it must lie."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resolvent_lab.experiments.network import RunConfig

if TYPE_CHECKING:
    from resolvent_lab.experiments.results import Results
    from resolvent_lab.experiments.run import Run


class NotRunError(LookupError):
    """A claim needs a run that is not among the results."""


class FailedError(NotRunError):
    """A claim needs a run that failed."""


class Runs:
    """The runs of one experiment with one seed. A claim that needs a failed run raises FailedError."""

    def __init__(self, runs: "Sequence[Run]", failed: Sequence[RunConfig] = ()) -> None:
        self.runs = runs
        self.failed = failed

    def __call__(self, metric: str, **settings: Any) -> Any:
        """A metric of the run with these settings."""
        for run in self.runs:
            if all(getattr(run.config, name) == value for name, value in settings.items()):
                return run.metrics[metric]
        self._refuse(lambda config: all(getattr(config, name) == value for name, value in settings.items()))
        raise NotRunError(f"no run with {settings}")

    def all(self, metric: str, where: Callable[[Any], bool]) -> list[Any]:
        """A metric of all runs whose configuration meets a condition. Raises NotRunError if there is none."""
        self._refuse(where)
        found = [run.metrics[metric] for run in self.runs if where(run.config)]
        if not found:
            raise NotRunError("no such run")
        return found

    def ratios(self, metric: str, where: Callable[[Any], bool], over: Mapping[str, tuple[Any, Any]]) -> list[float]:
        """Ratios of a metric between two values of one setting, over={name: (one, other)}, for runs that meet a
        condition."""
        ((name, (one, other)),) = over.items()
        self._refuse(lambda config: where(config) and getattr(config, name) == one)
        quotients = []
        for run in self.runs:
            if where(run.config) and getattr(run.config, name) == one:
                rest = {key: value for key, value in vars(run.config).items() if key != name}
                quotients.append(run.metrics[metric] / self(metric, **rest, **{name: other}))
        if not quotients:
            raise NotRunError(f"no run with {name} = {one}")
        return quotients

    def _refuse(self, where: Callable[[Any], bool]) -> None:
        if any(where(config) for config in self.failed):
            raise FailedError("such a run failed")


LIMITS = {"paper": "", "theory": " (theory)", "figure": " (from a figure)", "own": " (own limit)"}
"""Where limits come from, and how tables say so.

"paper": from its text or a table. "theory": from a formula. "figure": they only say where curves were in a figure of
the paper, or in the authors' networks behind it, with a margin of ours; a miss by little means little. "own": chosen by
us, where the paper shows only a trend or says nothing.
"""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and a number that must lie between low and high for every seed.

    Attributes:
        statement: of the paper.
        quantity: what is measured, in words.
        measure: maps the runs of a seed to the number.
        low, high: its limits.
        limit_from: where the limits come from, a key of `LIMITS`.
    """

    statement: str
    quantity: str
    measure: Callable[[Runs], float]
    low: float = -math.inf
    high: float = math.inf
    limit_from: str = "paper"

    def __post_init__(self) -> None:
        if self.limit_from not in LIMITS:
            raise ValueError(f"limit_from must be one of {', '.join(LIMITS)}, got {self.limit_from!r}.")

    @property
    def criterion(self) -> str:
        source = LIMITS[self.limit_from]
        if self.low == -math.inf:
            return f"≤ {self.high:g}{source}"
        return (f"≥ {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}") + source


@dataclass(frozen=True)
class ClaimResult:
    """A claim and its measured values.

    Attributes:
        claim: the claim.
        values: one for each seed that has the necessary runs.
        failed: number of seeds without a value because a run failed.
        shortened: whether the runs were shorter than those that the limits are meant for.
    """

    claim: Claim
    values: tuple[float, ...]
    failed: int = 0
    shortened: bool = False

    @property
    def successes(self) -> int:
        return sum(self.claim.low <= value <= self.claim.high for value in self.values)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`. A shortened run that misses a limit says nothing about the claim."""
        if not self.values:
            return "not run"
        holds = self.successes == len(self.values)
        if self.shortened:
            return "holds, shortened" if holds else "not judged: shortened"
        return "reproduced" if holds else "not reproduced"

    @property
    def seeds(self) -> str:
        """The number of seeds for which the claim holds, in words."""
        return f"{self.successes} of {len(self.values)}" + (f", {self.failed} failed" if self.failed else "")


VERDICTS = ("reproduced", "not reproduced", "holds, shortened", "not judged: shortened", "not run")


def judge_claims(claims: Sequence[Claim], results: "Results", shortened: bool = False) -> list[ClaimResult]:
    """The outcomes of the claims of one experiment. `shortened`: see `ClaimResult`."""
    failed = [failure.config for failure in results.failures]
    numbers = sorted({config.seed for config in (*(run.config for run in results.runs), *failed)})
    seeds = [
        Runs([run for run in results.runs if run.config.seed == seed], [c for c in failed if c.seed == seed])
        for seed in numbers
    ]
    return [_judge(claim, seeds, shortened) for claim in claims]


def _judge(claim: Claim, seeds: Sequence[Runs], shortened: bool) -> ClaimResult:
    values, failed = [], 0
    for runs in seeds:
        try:
            values.append(float(claim.measure(runs)))
        except FailedError:
            failed += 1
        except NotRunError:
            continue
    return ClaimResult(claim, tuple(values), failed, shortened)
