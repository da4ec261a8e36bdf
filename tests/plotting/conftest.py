"""Figures are drawn in memory, and closed after each test."""

from collections.abc import Iterator

import matplotlib as mpl
import pytest

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    import matplotlib.pyplot as plt

    yield
    plt.close("all")
