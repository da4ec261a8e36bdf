"""Attacks that follow the gradient of the loss: one step, or many; and the one that adversarial training needs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent_lab.robustness.budget import Budget, per_row, require_pixels
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, judge, margin
from resolvent_lab.robustness.randomness import per_image
from resolvent_lab.robustness.solving import fixed

# Enough to cross the ball from one side to the other, with some to spare.
_TRAVEL = 2.5


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, batch_size: int = BATCH_SIZE) -> Outcome:
    """One step of the full radius along the gradient of the cross-entropy, from the image itself.

    Reference: Goodfellow, Shlens and Szegedy, Explaining and harnessing adversarial examples, 2015.
    """
    require_pixels(images)
    batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    return judge(
        model, torch.cat([_step(model, x, y, budget, x, budget.radius)[0] for x, y in batches]), labels, batch_size
    )


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    budget: Budget,
    seed: int,
    steps: int = 40,
    restarts: int = 1,
    batch_size: int = BATCH_SIZE,
) -> Outcome:
    """Projected gradient ascent on the cross-entropy, from random points of the ball.

        x <- P(x + (2.5 radius / steps) d),   d the direction of norm 1 that follows the gradient best

    Of all the points on the way the one with the worst margin counts.

    Arguments:
        model: images -> scores, best inside of `attackable`.
        images: (n, channels, height, width), in [0, 1].
        labels: (n,).
        budget: P is the projection to it.
        seed: of the starting points.
        steps, restarts: how many.
        batch_size: images in one pass; it has no influence on the outcome.

    Reference: Madry et al., Towards deep learning models resistant to adversarial attacks, 2018.
    """
    require_pixels(images)
    worst, margins = images, _nothing_yet(images)
    for restart in range(restarts):
        starts = budget.scatter(images, per_image(_uniform(images), images, seed, "start", restart))
        batches = zip(*(tensor.split(batch_size) for tensor in (images, labels, starts)), strict=True)
        found = [_worst_on_the_way(model, x, y, budget, start, steps) for x, y, start in batches]
        points, found_margins = (torch.cat(parts) for parts in zip(*found, strict=True))
        worst, margins = _worse(worst, margins, points, found_margins)
    return judge(model, worst, labels, batch_size)


def adversarial_images(model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, steps: int = 7) -> Tensor:
    """Images to train on: where projected gradient ascent from a random point of the ball ends.

    The random points come from torch's global generator, as everything random in training does. The model is attacked
    in evaluation mode, with its equations solved as in training, and neither its buffers nor its gradients change.

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


def _worst_on_the_way(
    model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, start: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    point, worst, margins = start, start, _nothing_yet(images)
    for _ in range(steps):
        following, scores = _step(model, images, labels, budget, point, _TRAVEL * budget.radius / steps)
        worst, margins = _worse(worst, margins, point, margin(scores, labels))
        point = following
    with torch.no_grad():
        return _worse(worst, margins, point, margin(model(point), labels))


def _worse(points: Tensor, margins: Tensor, others: Tensor, other_margins: Tensor) -> tuple[Tensor, Tensor]:
    worse = other_margins > margins
    return torch.where(per_row(worse, points), others, points), torch.where(worse, other_margins, margins)


def _nothing_yet(images: Tensor) -> Tensor:
    return torch.full(images.shape[:1], -torch.inf, dtype=images.dtype, device=images.device)


def _uniform(images: Tensor) -> Callable[[np.random.Generator], Any]:
    shape = images.shape[1:]
    return lambda random: random.uniform(-1.0, 1.0, shape)


def transfer(
    model: nn.Module,
    surrogate: nn.Module,
    images: Tensor,
    labels: Tensor,
    budget: Budget,
    seed: int,
    steps: int = 40,
    restarts: int = 1,
    batch_size: int = BATCH_SIZE,
) -> Outcome:
    """Shows a model what projected gradient ascent on another one, the surrogate, has found; see `pgd`."""
    made = pgd(surrogate, images, labels, budget, seed, steps, restarts, batch_size)
    return judge(model, made.images, labels, batch_size)
