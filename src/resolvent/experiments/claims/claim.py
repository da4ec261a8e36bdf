"""A claim of the paper as a number that is measured and an interval in which it has to lie."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resolvent.experiments.run import Run


class NotRunError(LookupError):
    """A claim needs a run that is not among the results."""


class Runs:
    """The runs of one experiment with one seed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def __call__(self, metric: str, **settings: Any) -> Any:
        """A metric of the one run with these settings."""
        for run in self.runs:
            if all(getattr(run.config, name) == value for name, value in settings.items()):
                return run.metrics[metric]
        raise NotRunError(f"no run with {settings}")

    def all(self, metric: str, where: Callable[[Any], bool]) -> list[Any]:
        """A metric of all runs whose configuration is as asked; at least one."""
        found = [run.metrics[metric] for run in self.runs if where(run.config)]
        if not found:
            raise NotRunError("no such run")
        return found

    def ratios(self, metric: str, where: Callable[[Any], bool], over: Mapping[str, tuple[Any, Any]]) -> list[float]:
        """The metric at one value of a setting divided by that at another, over={name: (one, other)}, where asked."""
        ((name, (one, other)),) = over.items()
        quotients = []
        for run in self.runs:
            if where(run.config) and getattr(run.config, name) == one:
                rest = {key: value for key, value in vars(run.config).items() if key != name}
                quotients.append(run.metrics[metric] / self(metric, **rest, **{name: other}))
        if not quotients:
            raise NotRunError(f"no run with {name} = {one}")
        return quotients


@dataclass(frozen=True)
class Claim:
    """What the paper says, and the number that decides it: it has to lie between low and high, for every seed.

    Attributes:
        statement: of the paper.
        quantity: what is measured, in words.
        measure: the number, from the runs of a seed.
        low, high: its limits.
    """

    statement: str
    quantity: str
    measure: Callable[[Runs], float]
    low: float = -math.inf
    high: float = math.inf

    @property
    def criterion(self) -> str:
        if self.low == -math.inf:
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Outcome:
    """A claim with what was measured, a number for each seed that has the runs it needs."""

    claim: Claim
    values: tuple[float, ...]

    @property
    def successes(self) -> int:
        return sum(self.claim.low <= value <= self.claim.high for value in self.values)

    @property
    def verdict(self) -> str:
        if not self.values:
            return "not run"
        return "reproduced" if self.successes == len(self.values) else "not reproduced"


def judge(claims: Sequence[Claim], runs: Sequence[Run]) -> list[Outcome]:
    """What becomes of the claims of one experiment."""
    seeds = [Runs([run for run in runs if run.config.seed == seed]) for seed in sorted({r.config.seed for r in runs})]
    outcomes = []
    for claim in claims:
        values = []
        for of_seed in seeds:
            try:
                values.append(float(claim.measure(of_seed)))
            except NotRunError:
                continue
        outcomes.append(Outcome(claim, tuple(values)))
    return outcomes
