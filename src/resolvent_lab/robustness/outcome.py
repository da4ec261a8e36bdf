"""What became of each image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BATCH_SIZE = 500


@dataclass(frozen=True)
class Outcome:
    """How a model classified images, one by one.

    Attributes:
        rank: (n,), how many wrong classes have at least the score of the right one.
        images: (n, ...), what the model was shown.
    """

    rank: Tensor
    images: Tensor

    @property
    def correct(self) -> Tensor:
        """(n,), whether the right class, and no other, has the largest score."""
        return self.top(1)

    @property
    def accuracy(self) -> float:
        """The fraction that is classified correctly."""
        return fraction(self.correct)

    def top(self, k: int) -> Tensor:
        """(n,), whether the right class is among the k with the largest scores."""
        return self.rank < k


def judge(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = BATCH_SIZE) -> Outcome:
    """Shows images to a model.

    Arguments:
        model: images (n, channels, height, width) -> scores (n, classes).
        images: (n, channels, height, width).
        labels: (n,), the right classes.
        batch_size: images in one pass; it has no influence on the outcome.
    """
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64 or len(images) == 0:
        raise ValueError(
            f"labels must be one whole number of type int64 for each of the {len(images)} images, and there must be "
            f"an image; got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    with torch.no_grad():
        ranks = [rank(model(x), y) for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True)]
    return Outcome(torch.cat(ranks), images)


def rank(scores: Tensor, labels: Tensor) -> Tensor:
    """How many wrong classes have at least the score of the right one; all of them where scores are not numbers."""
    right = scores.gather(1, labels[:, None])
    return (~(scores < right)).sum(dim=1) - 1


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """The largest score of a wrong class less the score of the right one: positive where the model errs."""
    right = scores.gather(1, labels[:, None])
    wrong = scores.scatter(1, labels[:, None], -torch.inf)
    return (wrong.amax(dim=1, keepdim=True) - right).squeeze(1)


def worst_case(outcomes: Sequence[Outcome]) -> Tensor:
    """(n,), whether an image is classified correctly under every one of several attacks."""
    return torch.stack([outcome.correct for outcome in outcomes]).all(dim=0)


def fraction(flags: Tensor) -> float:
    """The fraction of flags that are set."""
    return float(flags.double().mean())


def masked(withstands_gradients: Tensor, withstands_all: Tensor) -> Tensor:
    """(n,), where no attack that follows the model's gradients succeeds but one that does without them.

    Such images have adversarial examples that the gradients do not lead to. A few are chance; many say that the
    gradients are masked, by the solver or otherwise, and that only the worst case over all attacks is to be believed.

    Arguments:
        withstands_gradients: (n,), whether an image is classified correctly under all attacks that follow gradients.
        withstands_all: (n,), the same under all attacks, see `worst_case`.

    Reference: Athalye, Carlini and Wagner, Obfuscated gradients give a false sense of security, 2018.
    """
    return withstands_gradients & ~withstands_all
