"""Rotations, blur, occlusion and broken pixels. Each is the identity at severity 0."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent_lab.robustness.randomness import per_image

Corruption = Callable[[Tensor, float, int], Tensor]


def rotate(images: Tensor, degrees: float, seed: int) -> Tensor:
    """Rotations about the centre, clockwise or not by chance, with bilinear interpolation and black corners."""
    if degrees == 0:
        return images.clone()
    angle = math.radians(degrees) * per_image(lambda random: random.choice((-1.0, 1.0)), images, seed, "rotation")
    zero = torch.zeros_like(angle)
    rows = (angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero)
    _, _, height, width = images.shape
    if height != width:
        raise ValueError(f"only square images are rotated, got {height} x {width}.")
    grid = F.affine_grid(torch.stack(rows, dim=1).reshape(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blur(images: Tensor, sigma: float, seed: int = 0) -> Tensor:
    """Convolution with a Gaussian of `sigma` pixels, cut off at four times that; the edges are continued."""
    if sigma == 0:
        return images.clone()
    radius = math.ceil(4 * sigma)
    at = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-0.5 * (at / sigma).square())
    weights = weights / weights.sum()
    channels = images.shape[1]
    for shape, padding in (((1, -1), (radius, radius, 0, 0)), ((-1, 1), (0, 0, radius, radius))):
        kernel = weights.reshape(1, 1, *shape).expand(channels, 1, *(len(weights) if n < 0 else 1 for n in shape))
        images = F.conv2d(F.pad(images, padding, mode="replicate"), kernel, groups=channels)
    return images


def occlude(images: Tensor, side: float, seed: int) -> Tensor:
    """A black square of `side` times `side` pixels anywhere inside of each image."""
    _, _, height, width = images.shape
    if side != int(side) or not 0 <= side <= min(height, width):
        raise ValueError(f"side must be a whole number of pixels within the {height} x {width} image, got {side}.")
    free = (height - int(side) + 1, width - int(side) + 1)
    corner = per_image(lambda random: random.integers(free), images, seed, "occlusion")
    row = torch.arange(height, device=images.device)[None, :, None] - corner[:, :1, None]
    column = torch.arange(width, device=images.device)[None, None, :] - corner[:, 1:, None]
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    return images.masked_fill(inside[:, None], 0.0)


def salt_and_pepper(images: Tensor, share: float, seed: int) -> Tensor:
    """The given share of the pixels, rounded to a whole number of them, turned black and white, half of them each.

    All channels of a pixel are hit together; where the number is odd, one more turns black.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie between 0 and 1, got {share}.")
    _, _, height, width = images.shape
    hit = round(share * height * width)
    colours = np.full(height * width, 0.5)
    colours[:hit] = 0.0
    colours[: hit // 2] = 1.0
    colour = per_image(lambda random: random.permutation(colours).reshape(1, height, width), images, seed, "pixels")
    return torch.where(colour == 0.5, images, colour)


CORRUPTIONS: dict[str, Corruption] = {
    "rotation": rotate,
    "blur": blur,
    "occlusion": occlude,
    "salt and pepper": salt_and_pepper,
}
"""By name; called with images, severity (degrees, pixels, pixels, share of the pixels) and seed."""
