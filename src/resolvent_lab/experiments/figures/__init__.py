"""The paper's figures, from the runs of a folder."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from resolvent_lab.experiments.figures import lotka_volterra, mnist, regression, stiff
from resolvent_lab.experiments.run import Run

FIGURES: dict[str, Callable[[Sequence[Run]], dict[str, Figure]]] = {
    "regression": regression.figures,
    "stiff": stiff.figures,
    "lotka-volterra": lotka_volterra.figures,
    "mnist": mnist.figures,
}
"""By experiment, a function from its runs with one seed to its figures by name."""

OF_ALL_SEEDS = ("mnist",)
"""The experiments whose figures are about the runs with all seeds."""
