"""The variation in time of the weights of a field."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.fields.piecewise import Piecewise, piecewise_parts


def variation(field: Piecewise) -> Tensor:
    """The total variation of piecewise constant parameters.

        sum over t = 1, ..., T-1 of |g_t - g_{t-1}|^2,      g_t all parameters of piece t

    T pieces have T - 1 differences. The parameters are those of the optimiser: for a normalised weight, the weight
    before normalisation.

    Arguments:
        field: its pieces must have the same parameters.

    Returns:
        A 0-d tensor.
    """
    named = [dict(piece.named_parameters()) for piece in field.pieces]
    shapes = [{name: tuple(p.shape) for name, p in parameters.items()} for parameters in named]
    for k, (before, after) in enumerate(pairwise(shapes)):
        if before != after:
            raise ValueError(
                f"the variation needs pieces with the same parameters, but piece {k} has {before} and piece {k + 1} "
                f"has {after}."
            )
    sets = torch.stack([nn.utils.parameters_to_vector(parameters.values()) for parameters in named])
    return sets.diff(dim=0).square().sum()


def piecewise(field: Any) -> list[Piecewise]:
    """The piecewise fields in a field; raises if there are none."""
    found = piecewise_parts(field)
    if not found:
        raise ValueError(
            f"the variation needs the pieces of an rs.fields.Piecewise, and {type(field).__name__} has none: give each "
            "layer its own weights, or leave the variation out."
        )
    return found
