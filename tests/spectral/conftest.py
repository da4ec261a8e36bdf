import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


def _assemble(layer: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    basis = torch.eye(math.prod(input_shape)).reshape(-1, *input_shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros_like(basis[:1]))).flatten(1).T


@pytest.fixture(scope="session")
def assemble() -> Callable[[nn.Module, tuple[int, ...]], Tensor]:
    """The matrix of a layer's linear part, column by column, from nothing but its forward pass."""
    return _assemble
