"""A chain of layers and its Jacobian for a compiler: one product per layer serves the value and all tangents.

The rest of a layer, bias, activation and derivative, is then one loop over contiguous memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resolvent.fields.activations import derivative_of


def in_columns(layers: Sequence[nn.Module], y: Tensor) -> tuple[Tensor, Tensor]:
    """The output of the layers for y, (batch, n), and the Jacobian, (batch, m, n)."""
    n = y.shape[1]
    # (width, batch) and (width, n, batch): samples are columns.
    value = y.t()
    tangents = torch.eye(n, dtype=y.dtype, device=y.device).unsqueeze(2).expand(-1, -1, y.shape[0])
    for layer in layers:
        if isinstance(layer, nn.Linear):
            columns = torch.cat([value.unsqueeze(1), tangents], dim=1)
            columns = (layer.weight @ columns.flatten(1)).unflatten(1, columns.shape[1:])
            value, tangents = columns[:, 0], columns[:, 1:]
            if layer.bias is not None:
                value = value + layer.bias.unsqueeze(1)
        else:
            derivative = derivative_of(layer)
            assert derivative is not None
            x, value = value, layer(value)
            tangents = tangents * derivative(layer, x, value).unsqueeze(1)
    return value.t(), tangents.permute(2, 0, 1)
