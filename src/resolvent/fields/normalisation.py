"""A bound on a composition, shared among its layers."""

import math
from collections.abc import Sequence

from torch import nn

from resolvent.spectral import spectral_norm


def share_bound(
    layers: Sequence[nn.Module],
    input_shapes: Sequence[tuple[int, ...]],
    bound: float,
    power_iterations: int,
    always: bool,
) -> None:
    """Normalise n layers, in place, so that the product of their norms keeps within a bound: bound^(1/n) for each."""
    check_bound(bound)
    for layer, shape in zip(layers, input_shapes, strict=True):
        spectral_norm(layer, shape, bound ** (1 / len(layers)), power_iterations, always)


def check_bound(bound: float) -> None:
    """Raise a ValueError unless the bound on a field is a positive number."""
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound must be a positive number, or None for a field without one, got {bound}")
