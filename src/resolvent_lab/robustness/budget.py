"""How far an attacker may go."""

from dataclasses import dataclass

import torch
from torch import Tensor

NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Budget:
    """The images within a distance of a given one, |x' - x| <= radius, with pixels in [0, 1].

    Arguments:
        norm: "linf" or "l2", over all pixels and channels of one image.
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
        """(n,), the distances between images."""
        return torch.linalg.vector_norm((others - images).flatten(1), torch.inf if self.norm == "linf" else 2, dim=1)

    def project(self, images: Tensor, others: Tensor) -> Tensor:
        """Moves images that are too far away back to within the radius and to pixels in [0, 1]."""
        change = others - images
        if self.norm == "linf":
            change = change.clamp(-self.radius, self.radius)
        else:
            length = per_row(self.distance(images, others), change)
            change = change * (self.radius / length.clamp(min=self.radius))
        # The images themselves have such pixels, so that this cannot take any of them farther away.
        return (images + change).clamp(0, 1)

    def scatter(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Points near the images to start from, made of numbers that are uniform in [-1, 1]."""
        if self.norm == "linf":
            return self.project(images, images + self.radius * uniform)
        return self.project(images, images + self.radius * self.ascent(uniform))

    def ascent(self, gradient: Tensor) -> Tensor:
        """The change of norm 1 that follows the gradient best."""
        if self.norm == "linf":
            return gradient.sign()
        # Confident models have gradients whose squares are not representable.
        largest = per_row(gradient.flatten(1).abs().amax(dim=1), gradient)
        scaled = gradient / largest.clamp(min=torch.finfo(gradient.dtype).tiny)
        length = per_row(torch.linalg.vector_norm(scaled.flatten(1), dim=1), gradient)
        return scaled / length.clamp(min=1.0)


def require_pixels(images: Tensor) -> None:
    """Refuses images that a budget, with its pixels in [0, 1], says nothing about."""
    if not bool(((images >= 0) & (images <= 1)).all()):
        low, high = float(images.min()), float(images.max())
        raise ValueError(
            f"pixels must lie in [0, 1], got some from {low:.4g} to {high:.4g}: attack a model that normalises its "
            "input inside, and give it the images as they are."
        )


def per_row(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))
