"""Initial weights."""

from collections.abc import Iterable

import torch
from torch import nn

from resolvent.equation.modes import refuse_transforms


def initialise(layers: Iterable[nn.Module], init: str) -> None:
    """Draw the weights of linear or convolutional layers and set their biases to zero, in place.

    Arguments:
        layers: modules with a weight and perhaps a bias.
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
