"""Times of several contenders that take turns, and the ratios of those of one turn."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from resolvent_lab.bench.contender import KINDS, Contender


def measure(contenders: Sequence[Contender], rounds: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Times and ratios by name and kind; the first contender is what the others are compared with.

    Contenders take turns, so that whatever else the machine does meets all of them, and a ratio is one of neighbours in
    time. Its median and quartiles over the rounds are what is reported, and all times are there for other ratios.

    Arguments:
        contenders: the first one is the reference.
        rounds: how often each has its turn.
        seconds: about how long a turn takes; one step at least, 100 at most.
    """
    results: dict[str, dict[str, Any]] = {contender.name: {} for contender in contenders}
    for kind in KINDS:
        repeats = {contender.name: _repeats(contender, kind, seconds) for contender in contenders}
        times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for n in range(rounds):
            # Another one is first each time: nobody always follows the same neighbour.
            for contender in [*contenders[n % len(contenders) :], *contenders[: n % len(contenders)]]:
                times[contender.name].append(contender.seconds(kind, repeats[contender.name]))
        reference = times[contenders[0].name]
        for name, own in times.items():
            ratios = [a / b for a, b in zip(own, reference, strict=True)]
            results[name][kind] = {"seconds": quartiles(own), "ratio": quartiles(ratios), "turns": own}
    return results


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def _repeats(contender: Contender, kind: str, seconds: float) -> int:
    contender.seconds(kind, 1)  # compiles and warms up
    return max(1, min(100, math.ceil(seconds / contender.seconds(kind, 1))))
