import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(autouse=True, scope="package")
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def _assemble(layer: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    basis = torch.eye(math.prod(input_shape)).reshape(-1, *input_shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros_like(basis[:1]))).flatten(1).T


@pytest.fixture(scope="session")
def assemble() -> Callable[[nn.Module, tuple[int, ...]], Tensor]:
    """The matrix of a layer's linear part, column by column, from nothing but its forward pass."""
    return _assemble
