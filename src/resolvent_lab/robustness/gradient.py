"""Attacks that follow the gradient of the loss: FGSM, PGD, transfer, and images for adversarial training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent_lab.robustness.attack import Adversarial, Attack, RecordPath
from resolvent_lab.robustness.budget import Budget, per_row, require_pixels
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, classify, margin
from resolvent_lab.robustness.randomness import per_image
from resolvent_lab.robustness.solving import fixed

# The total length of all steps, in radii. 2 would be enough to cross the ball.
_TRAVEL = 2.5


@dataclass(frozen=True)
class FGSM(Adversarial):
    """The fast gradient sign method: one step of the full radius along the gradient of the cross-entropy.

    Reference: Goodfellow, Shlens and Szegedy, Explaining and harnessing adversarial examples, 2015.
    """

    budget: Budget

    name = "fgsm"
    uses_gradients = True

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        require_pixels(images)
        batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
        found = [_step(model, x, y, self.budget, x, self.budget.radius)[0] for x, y in batches]
        return classify(model, torch.cat(found), labels, batch_size)


@dataclass(frozen=True)
class PGD(Adversarial):
    """Projected gradient ascent on the cross-entropy, from random points of the ball.

        x <- P(x + (2.5 radius / steps) d),   d the direction of norm 1 with the largest ascent

    P projects to the budget. The point with the worst margin is kept, over all steps and restarts.

    Reference: Madry et al., Towards deep learning models resistant to adversarial attacks, 2018.
    """

    budget: Budget
    steps: int = 40
    restarts: int = 1

    name = "pgd"
    uses_gradients = True
    transfers = True

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        require_pixels(images)
        worst, margins = images, _no_margins(images)
        for restart in range(self.restarts):
            starts = self.budget.scatter(images, per_image(_uniform(images), images, seed, "start", restart))
            batches = zip(*(tensor.split(batch_size) for tensor in (images, labels, starts)), strict=True)
            found = [_ascend(model, x, y, self.budget, start, self.steps) for x, y, start in batches]
            points, found_margins = (torch.cat(parts) for parts in zip(*found, strict=True))
            worst, margins = _worse(worst, margins, points, found_margins)
        return classify(model, worst, labels, batch_size)


@dataclass(frozen=True, eq=False)
class Transfer(Attack):
    """Shows a model the images that an attack found for another model, the source."""

    attack: Attack
    source: str
    found: Tensor

    searches = True

    @property
    def path(self) -> RecordPath:
        return (*self.attack.path[:2], "transfer from", self.source)

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        return classify(model, self.found, labels, batch_size)


def adversarial_images(model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, steps: int = 7) -> Tensor:
    """Images for adversarial training: the last point of projected gradient ascent from a random point of the ball.

    The random points come from torch's global generator, like all random numbers in training. The model is attacked in
    evaluation mode, with its equations solved as in training. Its buffers and gradients do not change.

    Reference: Madry et al., Towards deep learning models resistant to adversarial attacks, 2018.
    """
    require_pixels(images)
    point = budget.scatter(images, 2 * torch.rand_like(images) - 1)
    with fixed(model):
        for _ in range(steps):
            point, _ = _step(model, images, labels, budget, point, _TRAVEL * budget.radius / steps)
    return point


def _step(
    model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, point: Tensor, size: float
) -> tuple[Tensor, Tensor]:
    """The next point, and the scores at the present one."""
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        scores = model(point)
        (gradient,) = torch.autograd.grad(F.cross_entropy(scores, labels, reduction="sum"), point)
    return budget.project(images, point.detach() + size * budget.ascent(gradient)), scores.detach()


def _ascend(
    model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, start: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """The points with the worst margins of one ascent, and these margins."""
    point, worst, margins = start, start, _no_margins(images)
    for _ in range(steps):
        following, scores = _step(model, images, labels, budget, point, _TRAVEL * budget.radius / steps)
        worst, margins = _worse(worst, margins, point, margin(scores, labels))
        point = following
    with torch.no_grad():
        return _worse(worst, margins, point, margin(model(point), labels))


def _worse(points: Tensor, margins: Tensor, others: Tensor, other_margins: Tensor) -> tuple[Tensor, Tensor]:
    worse = other_margins > margins
    return torch.where(per_row(worse, points), others, points), torch.where(worse, other_margins, margins)


def _no_margins(images: Tensor) -> Tensor:
    return torch.full(images.shape[:1], -torch.inf, dtype=images.dtype, device=images.device)


def _uniform(images: Tensor) -> Callable[[np.random.Generator], Any]:
    shape = images.shape[1:]
    return lambda random: random.uniform(-1.0, 1.0, shape)
