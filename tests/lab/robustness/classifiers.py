"""Classifiers of small images that are easy to attack, and one whose distance to the boundary is known."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.robustness import Budget
from seeding import shifted

SIZE = 10
PIXELS = SIZE * SIZE
DUAL = {"linf": 1, "l2": 2}


class Linear(nn.Sequential):
    """Scores W (x - 1/2): the distance of an image to the boundary is that to the nearest of a few planes."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(PIXELS, classes))
        nn.init.normal_(self[1].weight)
        with torch.no_grad():
            self[1].bias.copy_(-0.5 * self[1].weight.sum(dim=1))

    def distance(self, images: Tensor, labels: Tensor, norm: str) -> Tensor:
        """min over j of (s_y - s_j) / |w_y - w_j|, in the dual norm; pixels may take any value."""
        scores, weight = self(images), self[1].weight
        margins = scores.gather(1, labels[:, None]) - scores
        slopes = torch.linalg.vector_norm(weight[labels][:, None] - weight, DUAL[norm], dim=2)
        return (margins / slopes).scatter(1, labels[:, None], torch.inf).amin(dim=1).detach()


def linear_case(classes: int, norm: str, count: int = 40) -> tuple[Linear, Tensor, Tensor, Tensor, Budget]:
    """A linear classifier, images as it labels them, their distances, and a budget that reaches half of them.

    The pixels are so far from 0 and 1 that no attack within the budget comes near.
    """
    model = Linear(classes)
    images = (0.5 + 0.05 * torch.randn(count, 1, SIZE, SIZE)).clamp(0.2, 0.8)
    labels = model(images).argmax(dim=1)
    distances = model.distance(images, labels, norm)
    return model, images, labels, distances, Budget(norm, float(distances.quantile(0.5)))


class Blind(nn.Module):
    """A model with the scores of another, and with no gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.detach()) + 0 * images.sum()


def theta_network(theta: float = 0.5, classes: int = 4, **block: object) -> nn.Sequential:
    """A theta block between linear maps whose Lipschitz constant is known."""
    field = rs.fields.Bounded(rs.fields.MLP(8, 8, 2, bound=1.0, always=True), -2.0, 0.5, scale=0.9)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, 8), rs.ThetaBlock(field, theta, 2, 2.0, **block), nn.Linear(8, classes)
    )


def patterns(count: int, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy copies of one pattern for each class."""
    random = torch.Generator().manual_seed(shifted(seed))
    prototypes = 0.5 + 0.25 * torch.randn(classes, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(shifted(99)))
    labels = torch.randint(classes, (count,), generator=random)
    return (prototypes[labels] + 0.2 * torch.randn(count, 1, SIZE, SIZE, generator=random)).clamp(0, 1), labels


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int = 40) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return model.eval()
