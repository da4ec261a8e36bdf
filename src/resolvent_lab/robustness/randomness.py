"""Random numbers per image. They do not depend on the batch or on the number of images."""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def per_image(
    draw: Callable[[np.random.Generator], Any], images: Tensor, seed: int, purpose: str, repetition: int = 0
) -> Tensor:
    """One draw for each image. It depends on seed, purpose, repetition and the index of the image only.

    Arguments:
        draw: maps a generator to an array, always of the same shape.
        images: determine the number of draws, their dtype and device.
        seed: an integer >= 0.
        purpose: draws for different purposes are independent.
        repetition: draws for different repetitions are independent.

    Returns:
        (n, *shape of the array).
    """
    return torch.from_numpy(
        np.stack([draw(np.random.default_rng(_key(seed, purpose, repetition, index))) for index in range(len(images))])
    ).to(images)


def derived_seed(seed: int, purpose: str, index: int) -> int:
    """A seed for a generator that takes a single integer."""
    return int(np.random.SeedSequence(_key(seed, purpose, 0, index)).generate_state(1)[0])


def _key(seed: int, purpose: str, repetition: int, index: int) -> tuple[int, ...]:
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}.")
    return seed, zlib.crc32(purpose.encode()), repetition, index
