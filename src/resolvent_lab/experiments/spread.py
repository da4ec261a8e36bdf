"""Numbers of several seeds as text."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def spread(values: Sequence[float], digits: str = ".3g") -> str:
    """Mean and standard deviation over seeds."""
    if not all(map(math.isfinite, values)):
        return ", ".join(f"{value:.3g}" for value in values)  # a field may blow up, which has no mean
    mean = f"{fmean(values):{digits}}"
    # Rounded twice: one digit alone would be written as 1e+01 from 10 on.
    return mean if len(set(values)) < 2 else f"{mean} ± {float(f'{stdev(values):.1g}'):g}"
