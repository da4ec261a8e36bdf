"""AutoAttack: three attacks that follow gradients and one that needs none, from the authors' own library.

The library draws its random numbers for a whole batch, so the outcome of an image depends on which others are attacked
together with it. That is made a part of the definition here: images are attacked in groups of `GROUP`, in their order,
each group with a seed of its own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent_lab.robustness.budget import Budget, per_row, require_pixels
from resolvent_lab.robustness.outcome import Outcome, fraction, judge
from resolvent_lab.robustness.randomness import derived_seed

GROUP = 500
GRADIENT_FREE = "square"
_NORMS = {"linf": "Linf", "l2": "L2"}


@dataclass(frozen=True)
class Effort:
    """How hard AutoAttack tries; the defaults are its standard version.

    Arguments:
        apgd_steps: of ascent on the cross-entropy, and towards each target on the ratio of logit differences.
        targets: classes that the targeted attacks aim at, the likeliest first.
        fab_steps: towards the boundary of each target; 0 leaves this attack out.
        queries: of the square attack, which sees nothing but the scores; 0 leaves it out.
    """

    apgd_steps: int = 100
    targets: int = 9
    fab_steps: int = 100
    queries: int = 5000

    @property
    def attacks(self) -> tuple[str, ...]:
        """The names, in their order."""
        steps = {
            "apgd-ce": self.apgd_steps,
            "apgd-t": self.apgd_steps * self.targets,
            "fab-t": self.fab_steps * self.targets,
            GRADIENT_FREE: self.queries,
        }
        return tuple(name for name, count in steps.items() if count > 0)


@dataclass(frozen=True)
class Ensemble(Outcome):
    """The outcome of attacks one after the other, each on the images that are left.

    Attributes:
        attacks: their names.
        broken_by: (n,), the index of the attack that succeeded; -1 where the model erred from the beginning, and the
            number of attacks where none succeeded.
    """

    attacks: tuple[str, ...]
    broken_by: Tensor

    def accuracy_after(self, attack: str) -> float:
        """The fraction that is still classified correctly after an attack and those before it."""
        return fraction(self.broken_by > self.attacks.index(attack))

    @property
    def withstands_gradients(self) -> Tensor:
        """(n,), whether none of the attacks that follow gradients succeeded."""
        return self.broken_by >= sum(name != GRADIENT_FREE for name in self.attacks)


def autoattack(
    model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, seed: int, effort: Effort | None = None
) -> Ensemble:
    """Attacks with the ensemble of AutoAttack.

    Arguments:
        model: images -> scores of four classes or more, best inside of `attackable`.
        images: (n, channels, height, width), in [0, 1].
        labels: (n,).
        budget: how far the attacks may go.
        seed: of everything random.
        effort: None takes the standard version.

    Reference: Croce and Hein, Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
    attacks, 2020.
    """
    require_pixels(images)
    effort = Effort() if effort is None else effort
    adversarial = images.clone()
    broken_by = torch.full_like(labels, len(effort.attacks))
    broken_by[~judge(model, images, labels).correct] = -1
    for group, rows in enumerate(torch.arange(len(images), device=images.device).split(GROUP)):
        for number, name in enumerate(effort.attacks):
            left = rows[broken_by[rows] == len(effort.attacks)]
            if len(left) == 0:
                break
            x, y = images[left], labels[left]
            found = _attack(name, model, x, y, budget, derived_seed(seed, name, group), effort)
            wrong = ~judge(model, found, y).correct
            adversarial[left] = torch.where(per_row(wrong, x), found, x)
            broken_by[left[wrong]] = number
    verdict = judge(model, adversarial, labels)
    return Ensemble(verdict.rank, adversarial, effort.attacks, broken_by)


def square(model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, seed: int, queries: int = 5000) -> Outcome:
    """Attacks without gradients, by random squares that are kept where they lower the margin.

    Reference: Andriushchenko et al., Square attack: a query-efficient black-box adversarial attack, 2020.
    """
    return autoattack(model, images, labels, budget, seed, Effort(0, 0, 0, queries))


def _attack(
    name: str, model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, seed: int, effort: Effort
) -> Tensor:
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
    if classes < 4:
        raise ValueError(f"AutoAttack needs four classes or more, got {classes}.")
    devices = [images.device] if images.device.type == "cuda" else []
    single = _SinglePrecision(model, images.dtype)
    with torch.random.fork_rng(devices=devices), _default_dtype(torch.float32):
        attack = _make(name, single, budget, seed, effort, classes, images.device)
        found = attack.perturb(images.float(), labels)
    return budget.project(images, found.to(images))


def _make(
    name: str, model: nn.Module, budget: Budget, seed: int, effort: Effort, classes: int, device: torch.device
) -> Any:
    try:
        from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted  # type: ignore[import-untyped]
        from pyautoattack.fab_pt import FABAttack_PT  # type: ignore[import-untyped]
        from pyautoattack.square import SquareAttack  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("AutoAttack needs the package pyautoattack: pip install 'resolvent[robustness]'.") from error
    common = {"norm": _NORMS[budget.norm], "eps": budget.radius, "seed": seed, "device": device}
    targets = min(effort.targets, classes - 1)
    logger = logging.getLogger(__name__)
    if name == "apgd-ce":
        return APGDAttack(model, n_iter=effort.apgd_steps, loss="ce", logger=logger, **common)
    if name == "apgd-t":
        options = {"n_iter": effort.apgd_steps, "n_target_classes": targets, "logger": logger}
        return APGDAttack_targeted(model, **options, **common)
    if name == "fab-t":
        return FABAttack_PT(model, n_iter=effort.fab_steps, targeted=True, n_target_classes=targets, **common)
    return SquareAttack(model, n_queries=effort.queries, resc_schedule=False, **common)


class _SinglePrecision(nn.Module):
    """A model as the library wants it, which computes in float32, while the model goes on in its own precision."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype, self.default = model, dtype, torch.get_default_dtype()

    def forward(self, images: Tensor) -> Tensor:
        with _default_dtype(self.default):
            scores: Tensor = self.model(images.to(self.dtype))
        # The library writes into the scores.
        return scores.to(torch.float32, copy=True)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
