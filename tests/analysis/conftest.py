from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
