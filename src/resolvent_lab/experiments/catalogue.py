"""The experiments by name. A new one is a folder with an `EXPERIMENT` in it, and an entry in the list below."""

from resolvent_lab.experiments import lotka_volterra, mnist, regression, stiff
from resolvent_lab.experiments.experiment import Experiment

_ALL = (regression.EXPERIMENT, stiff.EXPERIMENT, lotka_volterra.EXPERIMENT, mnist.EXPERIMENT)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def chosen(names: str) -> list[Experiment]:
    """The experiments meant by a name, or by "all"."""
    if names == "all":
        return list(EXPERIMENTS.values())
    if names not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {names!r}: take one of {', '.join(EXPERIMENTS)}, or all.")
    return [EXPERIMENTS[names]]
