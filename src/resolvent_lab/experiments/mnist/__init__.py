"""Example 4: classification of digits under noise, by explicit and implicit residual networks."""

from collections.abc import Sequence
from typing import Any

from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.mnist.attacks import attack
from resolvent_lab.experiments.mnist.claims import CLAIMS
from resolvent_lab.experiments.mnist.columns import configs
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.network import Mnist, data
from resolvent_lab.experiments.mnist.tables import tables

_DESCRIPTION = (
    "Residual networks of the same size, with four stages of two theta layers, are trained on a thousand clean images. "
    "They are tested with Gaussian noise of standard deviation sigma, on the training images, as in the paper, and on "
    "held-out images. The paper's numbers are in parentheses. Columns theta0 to theta1 are the paper's, with F^{-3,1}. "
    "For theta = 0 that field cancels the skip connection. The explicit networks to compare with are therefore "
    "explicit-2.5 (F^{-2.5,1}), explicit-1lip (F^{-1,1}), explicit-free (F = S*G, the usual residual network) and "
    "explicit-batchnorm. Numbers are means over draws of the noise, which are the same for all networks, and over "
    "seeds, with the standard deviation over seeds."
)


def _figures(runs: Sequence[Any]) -> dict[str, Any]:
    from resolvent_lab.experiments.mnist.figures import figures  # needs matplotlib, which training does not

    return figures(runs)


def _is_mnist(config: MnistConfig) -> bool:
    """The claims are about digits of MNIST, not about other images."""
    return config.data != "own"


EXPERIMENT = Experiment(
    name="mnist",
    title="Digits under noise",
    description=_DESCRIPTION,
    config=MnistConfig,
    configs=configs,
    data=data,
    network=Mnist,
    claims=CLAIMS,
    tables=tables,
    figures=_figures,
    figures_show_all_seeds=True,
    claims_apply=_is_mnist,
    duration=4,
    extras=("columns", "data", "held_out"),
    attack=attack,
)
