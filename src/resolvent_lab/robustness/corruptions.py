"""Corruptions: rotation, blur, occlusion, salt and pepper. Each is the identity at severity 0."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent_lab.robustness.attack import Attack, RecordPath
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, classify
from resolvent_lab.robustness.randomness import per_image


class Corruption(Attack):
    """Changes images by chance, with a given severity."""

    name: ClassVar[str]
    """In tables and records."""

    severity: float

    @property
    def path(self) -> RecordPath:
        return ("corruptions", self.name, f"{self.severity:g}")

    @abstractmethod
    def corrupt(self, images: Tensor, seed: int) -> Tensor:
        """The corrupted images. Random numbers depend on the seed and the index of the image only."""

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        return classify(model, self.corrupt(images, seed), labels, batch_size)


@dataclass(frozen=True)
class Rotation(Corruption):
    """Rotates by `severity` degrees about the centre, in a random direction; bilinear, with black corners."""

    severity: float
    name = "rotation"

    def corrupt(self, images: Tensor, seed: int) -> Tensor:
        if self.severity == 0:
            return images.clone()
        _, _, height, width = images.shape
        if height != width:
            raise ValueError(f"only square images are rotated, got {height} x {width}.")
        signs = per_image(lambda random: random.choice((-1.0, 1.0)), images, seed, "rotation")
        angle = math.radians(self.severity) * signs
        zero = torch.zeros_like(angle)
        rows = (angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero)
        grid = F.affine_grid(torch.stack(rows, dim=1).reshape(-1, 2, 3), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@dataclass(frozen=True)
class Blur(Corruption):
    """Convolves with a Gaussian of `severity` pixels, truncated at four times that, with replicated edges."""

    severity: float
    name = "blur"

    def corrupt(self, images: Tensor, seed: int) -> Tensor:
        if self.severity == 0:
            return images.clone()
        radius = math.ceil(4 * self.severity)
        at = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
        weights = torch.exp(-0.5 * (at / self.severity).square())
        weights = weights / weights.sum()
        channels = images.shape[1]
        for shape, padding in (((1, -1), (radius, radius, 0, 0)), ((-1, 1), (0, 0, radius, radius))):
            kernel = weights.reshape(1, 1, *shape).expand(channels, 1, *(len(weights) if n < 0 else 1 for n in shape))
            images = F.conv2d(F.pad(images, padding, mode="replicate"), kernel, groups=channels)
        return images


@dataclass(frozen=True)
class Occlusion(Corruption):
    """Draws a black square with sides of `severity` pixels at a random place in each image."""

    severity: float
    name = "occlusion"

    def corrupt(self, images: Tensor, seed: int) -> Tensor:
        _, _, height, width = images.shape
        side = int(self.severity)
        if side != self.severity or not 0 <= side <= min(height, width):
            raise ValueError(
                f"severity must be a whole number of pixels within the {height} x {width} image, got {self.severity}."
            )
        free = (height - side + 1, width - side + 1)
        corner = per_image(lambda random: random.integers(free), images, seed, "occlusion")
        row = torch.arange(height, device=images.device)[None, :, None] - corner[:, :1, None]
        column = torch.arange(width, device=images.device)[None, None, :] - corner[:, 1:, None]
        inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
        return images.masked_fill(inside[:, None], 0.0)


@dataclass(frozen=True)
class SaltAndPepper(Corruption):
    """Turns the fraction `severity` of the pixels black or white, half of them each.

    All channels of a pixel change together. If the number of pixels is odd, one more turns black.
    """

    severity: float
    name = "salt and pepper"

    def corrupt(self, images: Tensor, seed: int) -> Tensor:
        if not 0 <= self.severity <= 1:
            raise ValueError(f"severity must lie between 0 and 1, got {self.severity}.")
        _, _, height, width = images.shape
        hit = round(self.severity * height * width)
        colours = np.full(height * width, 0.5)
        colours[:hit] = 0.0
        colours[: hit // 2] = 1.0
        colour = per_image(lambda random: random.permutation(colours).reshape(1, height, width), images, seed, "pixels")
        return torch.where(colour == 0.5, images, colour)
