"""Outcomes: how a model classified each image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BATCH_SIZE = 500


@dataclass(frozen=True)
class Outcome:
    """How a model classified images.

    Attributes:
        rank: (n,), the number of wrong classes whose score is at least that of the correct class.
        images: (n, ...), the images that the model was shown.
        attacks: for a sequence of attacks, their names.
        broken_by: (n,), for a sequence of attacks, the index of the attack that succeeded; -1 if the model was wrong
            without an attack, and the number of attacks if none succeeded.
    """

    rank: Tensor
    images: Tensor
    attacks: tuple[str, ...] = ()
    broken_by: Tensor | None = None

    @property
    def correct(self) -> Tensor:
        """(n,), whether the correct class alone has the largest score."""
        return self.top(1)

    @property
    def accuracy(self) -> float:
        """The fraction of images that are classified correctly."""
        return fraction(self.correct)

    def top(self, k: int) -> Tensor:
        """(n,), whether the correct class is among the k largest scores."""
        return self.rank < k

    def correct_after(self, count: int) -> Tensor:
        """(n,), whether the image is still classified correctly after the first `count` attacks of a sequence."""
        assert self.broken_by is not None
        return self.broken_by >= count

    def accuracy_after(self, attack: str) -> float:
        """The accuracy after an attack of a sequence and those before it."""
        return fraction(self.correct_after(self.attacks.index(attack) + 1))


def classify(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = BATCH_SIZE) -> Outcome:
    """Classifies images.

    Arguments:
        model: images (n, channels, height, width) -> scores (n, classes).
        images: (n, channels, height, width).
        labels: (n,), the correct classes.
        batch_size: images per forward pass. It does not change the outcome.
    """
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64 or len(images) == 0:
        raise ValueError(
            f"labels must be one whole number of type int64 for each of the {len(images)} images, and there must be "
            f"at least one image; got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    with torch.no_grad():
        ranks = [rank(model(x), y) for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True)]
    return Outcome(torch.cat(ranks), images)


def rank(scores: Tensor, labels: Tensor) -> Tensor:
    """The number of wrong classes whose score is at least that of the correct class; all of them if scores are nan."""
    right = scores.gather(1, labels[:, None])
    return (~(scores < right)).sum(dim=1) - 1


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """The largest score of a wrong class minus that of the correct class. It is positive where the model is wrong."""
    right = scores.gather(1, labels[:, None])
    wrong = scores.scatter(1, labels[:, None], -torch.inf)
    return (wrong.amax(dim=1, keepdim=True) - right).squeeze(1)


def worst_case(outcomes: Sequence[Outcome]) -> Tensor:
    """(n,), whether an image is classified correctly in every one of several outcomes."""
    return torch.stack([outcome.correct for outcome in outcomes]).all(dim=0)


def fraction(flags: Tensor) -> float:
    """The fraction of flags that are set."""
    return float(flags.double().mean())


def masked(withstands_gradients: Tensor, withstands_all: Tensor) -> Tensor:
    """(n,), where only an attack without gradients of the model succeeds.

    Such images have adversarial examples that the gradients do not lead to. A few are chance. Many mean that gradients
    are masked, by the solver or otherwise, and that only the worst case over all attacks is reliable.

    Arguments:
        withstands_gradients: (n,), whether an image is classified correctly under all attacks that use gradients.
        withstands_all: (n,), the same under all attacks, see `worst_case`.

    Reference: Athalye, Carlini and Wagner, Obfuscated gradients give a false sense of security, 2018.
    """
    return withstands_gradients & ~withstands_all
