"""Certificates: distances within which no attack can change the class."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resolvent.analysis import certified_radius, lipschitz_bound
from resolvent_lab.robustness.budget import Budget
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, classify, fraction


def certified_radii(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    lipschitz: float | None = None,
    batch_size: int = BATCH_SIZE,
) -> Tensor:
    """(n,), the l2 distance within which each image is provably classified correctly; -inf where the model is wrong.

    Arguments:
        model: images -> scores.
        images: (n, channels, height, width).
        labels: (n,).
        lipschitz: a Lipschitz constant of the model; by default `rs.analysis.lipschitz_bound` computes it.
        batch_size: images per forward pass.

    Reference: Tsuzuku, Sato and Sugiyama, Lipschitz-margin training, 2018.
    """
    bound = lipschitz_bound(model, tuple(images.shape[1:])) if lipschitz is None else lipschitz
    radii = torch.cat([certified_radius(model, x, bound) for x in images.split(batch_size)])
    return radii.masked_fill(~classify(model, images, labels, batch_size).correct, -math.inf)


def certified_accuracy(radii: Tensor, distances: Sequence[float]) -> list[float]:
    """For each l2 distance, the fraction of images that no perturbation of that size can make the model get wrong."""
    return [fraction(radii >= distance) for distance in distances]


def refuted(radii: Tensor, images: Tensor, outcome: Outcome) -> Tensor:
    """(n,), whether an attack succeeded within the certified radius. It never does if bound and solves are right.

    Arguments:
        radii: (n,), of the images.
        images: (n, channels, height, width), before the attack.
        outcome: of the attack, in any norm.
    """
    return ~outcome.correct & (Budget("l2", 1.0).distance(images, outcome.images) < radii)
