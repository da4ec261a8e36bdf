"""The weights of a field's layers: initial values, and a bound shared by the layers."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from resolvent.equation.modes import refuse_transforms
from resolvent.spectral import spectral_norm


def initialise(layers: Iterable[nn.Module], init: str) -> None:
    """Draws the weights of linear or convolutional layers and sets their biases to zero, in place.

    Arguments:
        layers: modules with a weight and an optional bias.
        init: "xavier": Xavier uniform. "xavier_unit": a second Xavier uniform draw with the gain 1/|W|_F of a first
            one, which leaves |W|_F close to 1.
    """
    refuse_transforms("initialise")
    if init not in ("xavier", "xavier_unit"):
        raise ValueError(f"init must be 'xavier' or 'xavier_unit', got {init!r}")
    for layer in layers:
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, torch.Tensor)
        nn.init.xavier_uniform_(weight)
        if init == "xavier_unit":
            nn.init.xavier_uniform_(weight, gain=1 / float(weight.detach().norm()))
        if bias is not None:
            assert isinstance(bias, torch.Tensor)
            nn.init.zeros_(bias)


def share_bound(
    layers: Sequence[nn.Module],
    input_shapes: Sequence[tuple[int, ...]],
    bound: float,
    power_iterations: int,
    always: bool,
) -> None:
    """Normalises n layers, in place, each to bound^(1/n), so that the product of their norms is at most the bound."""
    check_bound(bound)
    for layer, shape in zip(layers, input_shapes, strict=True):
        spectral_norm(layer, shape, bound ** (1 / len(layers)), power_iterations, always)


def check_bound(bound: float) -> None:
    """Raises a ValueError unless the bound on a field is a positive number."""
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound must be a positive number, or None for a field without one, got {bound}")
