"""Budgets: how much an attack may change an image."""

from dataclasses import dataclass

import torch
from torch import Tensor

NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Budget:
    """The images x' with |x' - x| <= radius and pixels in [0, 1].

    Arguments:
        norm: "linf" or "l2", over all pixels and channels of an image.
        radius: > 0.
    """

    norm: str
    radius: float

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(f"norm must be one of {NORMS}, got {self.norm!r}.")
        if not self.radius > 0:
            raise ValueError(f"radius must be more than 0, got {self.radius!r}.")

    def __str__(self) -> str:
        return f"{self.norm} {self.radius:g}"

    def distance(self, images: Tensor, others: Tensor) -> Tensor:
        """(n,), the distance of each image to its counterpart."""
        return torch.linalg.vector_norm((others - images).flatten(1), torch.inf if self.norm == "linf" else 2, dim=1)

    def project(self, images: Tensor, others: Tensor) -> Tensor:
        """Projects `others` to the ball around the images, and to pixels in [0, 1]."""
        change = others - images
        if self.norm == "linf":
            change = change.clamp(-self.radius, self.radius)
        else:
            length = per_row(self.distance(images, others), change)
            change = change * (self.radius / length.clamp(min=self.radius))
        # The images have pixels in [0, 1] themselves, so clamping does not increase the distance.
        return (images + change).clamp(0, 1)

    def scatter(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Starting points in the ball around the images, from numbers that are uniform in [-1, 1]."""
        if self.norm == "linf":
            return self.project(images, images + self.radius * uniform)
        return self.project(images, images + self.radius * self.ascent(uniform))

    def ascent(self, gradient: Tensor) -> Tensor:
        """The change of norm 1 with the largest inner product with the gradient."""
        if self.norm == "linf":
            return gradient.sign()
        # Scaled first: gradients of confident models are so small that their squares underflow.
        largest = per_row(gradient.flatten(1).abs().amax(dim=1), gradient)
        scaled = gradient / largest.clamp(min=torch.finfo(gradient.dtype).tiny)
        length = per_row(torch.linalg.vector_norm(scaled.flatten(1), dim=1), gradient)
        return scaled / length.clamp(min=1.0)


def require_pixels(images: Tensor) -> None:
    """Raises a ValueError if pixels are not in [0, 1], as budgets require."""
    if not bool(((images >= 0) & (images <= 1)).all()):
        low, high = float(images.min()), float(images.max())
        raise ValueError(
            f"pixels must lie in [0, 1], got some from {low:.4g} to {high:.4g}: put the normalisation of the input "
            "into the model, and attack it with the original images."
        )


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Values (n,) in a shape that broadcasts against `like`, (n, ...)."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
