"""Example 4: classification of digits under noise, by explicit and implicit residual networks."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from resolvent_lab.experiments.claim import Claim
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.mnist.attacks import attack
from resolvent_lab.experiments.mnist.claims import CLAIMS
from resolvent_lab.experiments.mnist.columns import SMOOTH, configs
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.measure import cell
from resolvent_lab.experiments.mnist.network import Mnist, data
from resolvent_lab.experiments.mnist.tables import by_column, tables

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


_CAPTIONS = {
    "mnist-main": "Accuracy on held-out digits under Gaussian noise: the plain residual network, the paper's, and "
    "those with a penalty on the sensitivity of their outputs. All were trained on clean images.",
    "mnist-noise": "All columns: training and held-out images, noise as it is and clamped to [0, 1].",
}


def _headline(runs: Sequence[Any]) -> str:
    """The plain residual network and the best one with a penalty on its sensitivity, under noise of 0.5."""
    accuracies = {
        column: fmean(run.metrics[cell("held_out", 0.5)] for run in of_column)
        for column, of_column in by_column(runs).items()
    }
    smooth = {column: accuracies[column] for column in SMOOTH if column in accuracies}
    if not smooth or "explicit-free" not in accuracies:
        return ""
    best = max(smooth, key=lambda column: smooth[column])
    return (
        f"Trained on clean digits and tested under noise of standard deviation 0.5, the plain residual network has "
        f"{accuracies['explicit-free']:.1f} % of held-out digits right. With a penalty on the sensitivity of its "
        f"outputs, {best} has {smooth[best]:.1f} %."
    )


def _shown_in(claim: Claim) -> str:
    own = ("explicit-", "implicit-", "implicit recipes", "attacks")
    return "" if any(word in claim.quantity for word in own) else "Table 3"


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
    captions=_CAPTIONS,
    main_figure="mnist-main",
    headline=_headline,
    shown_in=_shown_in,
    figures_show_all_seeds=True,
    claims_apply=_is_mnist,
    duration=4,
    extras=("columns", "data", "held_out"),
    attack=attack,
)
