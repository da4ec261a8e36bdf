"""Attacks: one interface for noise, corruptions and adversarial examples."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from resolvent_lab.robustness.budget import Budget
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome

RecordPath = tuple[str, ...]
"""A place in the record of a model: section, group, name, and so on."""


class Attack(ABC):
    """Changes images, by chance or on purpose, and shows them to a classifier.

    An attack is a frozen dataclass of its settings. It joins an evaluation by a line in `Size.attacks`. The evaluation
    and its tables read everything else from the attack itself.
    """

    searches: ClassVar[bool] = False
    """Whether it searches for the worst images. It then counts in the worst case of its group, `path[:2]`."""

    uses_gradients: ClassVar[bool] = False
    """Whether it follows gradients of the model."""

    transfers: ClassVar[bool] = False
    """Whether the images that it finds for one model are also shown to the other models."""

    @property
    @abstractmethod
    def path(self) -> RecordPath:
        """Where the result is stored in the record of a model, such as ("attacks", "l2 0.5", "pgd")."""

    @abstractmethod
    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        """Attacks a model.

        Arguments:
            model: maps images to scores. Use `attackable` to get accurate gradients.
            images: (n, channels, height, width), in [0, 1].
            labels: (n,), the correct classes.
            seed: of all random numbers.
            batch_size: images per forward pass. It does not change the outcome.
        """

    def record(self, outcome: Outcome) -> dict[RecordPath, Any]:
        """The results to store, with their places. They must be valid JSON. By default the accuracy."""
        return {self.path: outcome.accuracy}

    def withstands_gradients(self, outcome: Outcome) -> Tensor:
        """(n,), whether the image is still classified correctly after the part of the attack that uses gradients."""
        return outcome.correct if self.uses_gradients else torch.ones_like(outcome.correct)


class Adversarial(Attack):
    """An attack that searches for the worst images within a budget."""

    name: ClassVar[str]
    """In tables and records."""

    budget: Budget
    searches = True

    @property
    def path(self) -> RecordPath:
        return ("attacks", str(self.budget), self.name)
