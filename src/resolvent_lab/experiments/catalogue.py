"""The experiments by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from resolvent_lab.experiments import lotka_volterra, regression, stiff
from resolvent_lab.experiments.mnist import columns as mnist_columns
from resolvent_lab.experiments.mnist import network as mnist
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.network import Batches, Config, Network
from resolvent_lab.images import ImageModule

Data = Batches | ImageModule


@dataclass(frozen=True)
class Experiment:
    """What a run needs to know of its experiment.

    Attributes:
        config: its class of configurations.
        configs: (quick, thetas, seeds) to the configurations of its sweep.
        data: a configuration to its data, drawn from torch's generator.
        network: a configuration to the network, likewise.
        extras: what `configs` takes besides, by keyword.
    """

    config: type[Config]
    configs: Callable[..., Sequence[Config]]
    data: Callable[[Any], Data]
    network: Callable[[Any], Network]
    extras: tuple[str, ...] = ()


EXPERIMENTS: dict[str, Experiment] = {
    "regression": Experiment(regression.RegressionConfig, regression.configs, regression.data, regression.Regression),
    "stiff": Experiment(stiff.StiffConfig, stiff.configs, stiff.data, stiff.Stiff),
    "lotka-volterra": Experiment(
        lotka_volterra.LotkaVolterraConfig, lotka_volterra.configs, lotka_volterra.data, lotka_volterra.LotkaVolterra
    ),
    "mnist": Experiment(
        MnistConfig, mnist_columns.configs, mnist.data, mnist.Mnist, extras=("columns", "data", "held_out")
    ),
}


def chosen(names: str) -> list[str]:
    """The experiments meant by a name, or by "all"."""
    if names == "all":
        return list(EXPERIMENTS)
    if names not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {names!r}: take one of {', '.join(EXPERIMENTS)}, or all.")
    return [names]
