"""AutoAttack: three attacks that follow gradients and one that needs none, from the authors' own library.

The library draws its random numbers per batch, so the outcome of an image depends on which others are attacked together
with it. The groups are therefore fixed: images are attacked in groups of `GROUP`, in their order, each group with its
own seed.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent_lab.robustness.attack import Adversarial, RecordPath
from resolvent_lab.robustness.budget import Budget, per_row, require_pixels
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, classify
from resolvent_lab.robustness.randomness import derived_seed

GROUP = 500
_NORMS = {"linf": "Linf", "l2": "L2"}


@dataclass(frozen=True)
class Effort:
    """How hard AutoAttack tries. The defaults are its standard version.

    Arguments:
        apgd_steps: steps of ascent on the cross-entropy, and towards each target on the ratio of logit differences.
        targets: number of classes that the targeted attacks aim at, the most likely first.
        fab_steps: steps towards the boundary of each target; 0 leaves this attack out.
        queries: queries of the square attack, which uses scores only; 0 leaves it out.
    """

    apgd_steps: int = 100
    targets: int = 9
    fab_steps: int = 100
    queries: int = 5000


@dataclass(frozen=True)
class AutoAttack(Adversarial):
    """Runs APGD, targeted APGD, targeted FAB and the square attack, each on the images that are left.

    It needs four classes or more. The outcome tells which attack succeeded on which image.

    Reference: Croce and Hein, Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
    attacks, 2020.
    """

    budget: Budget
    effort: Effort = Effort()

    name = "autoattack"
    uses_gradients = True

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        return _run(_parts(self.effort), self.budget, model, images, labels, seed)

    def withstands_gradients(self, outcome: Outcome) -> Tensor:
        return outcome.correct_after(sum(part.uses_gradients for part in _parts(self.effort)))

    def record(self, outcome: Outcome) -> dict[RecordPath, Any]:
        *group, name = self.path
        after = {attack: outcome.accuracy_after(attack) for attack in outcome.attacks}
        return {self.path: outcome.accuracy, (*group, f"{name}, after"): after}


@dataclass(frozen=True)
class Square(Adversarial):
    """The square attack: random squares, kept where they lower the margin. It uses scores only.

    Reference: Andriushchenko et al., Square attack: a query-efficient black-box adversarial attack, 2020.
    """

    budget: Budget
    queries: int = 5000

    name = "square"

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        return _run(_parts(Effort(0, 0, 0, self.queries)), self.budget, model, images, labels, seed)


@dataclass(frozen=True)
class _Part:
    """One attack of the library: (model, classes, common settings) -> an object with `perturb`."""

    name: str
    uses_gradients: bool
    make: Callable[[nn.Module, int, dict[str, Any]], Any]


def _parts(effort: Effort) -> list[_Part]:
    """The attacks of the library that are run with this effort, in their order."""
    steps, fab_steps = effort.apgd_steps, effort.fab_steps
    logger = logging.getLogger(__name__)

    def targets(classes: int) -> int:
        return min(effort.targets, classes - 1)

    def apgd(model: nn.Module, classes: int, common: dict[str, Any]) -> Any:
        from pyautoattack.autopgd_base import APGDAttack  # type: ignore[import-untyped]

        return APGDAttack(model, n_iter=steps, loss="ce", logger=logger, **common)

    def targeted_apgd(model: nn.Module, classes: int, common: dict[str, Any]) -> Any:
        from pyautoattack.autopgd_base import APGDAttack_targeted

        return APGDAttack_targeted(model, n_iter=steps, n_target_classes=targets(classes), logger=logger, **common)

    def fab(model: nn.Module, classes: int, common: dict[str, Any]) -> Any:
        from pyautoattack.fab_pt import FABAttack_PT  # type: ignore[import-untyped]

        return FABAttack_PT(model, n_iter=fab_steps, targeted=True, n_target_classes=targets(classes), **common)

    def square(model: nn.Module, classes: int, common: dict[str, Any]) -> Any:
        from pyautoattack.square import SquareAttack  # type: ignore[import-untyped]

        return SquareAttack(model, n_queries=effort.queries, resc_schedule=False, **common)

    parts = {
        _Part("apgd-ce", True, apgd): steps,
        _Part("apgd-t", True, targeted_apgd): steps * effort.targets,
        _Part("fab-t", True, fab): fab_steps * effort.targets,
        _Part("square", False, square): effort.queries,
    }
    return [part for part, count in parts.items() if count > 0]


def _run(parts: list[_Part], budget: Budget, model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> Outcome:
    """Runs the parts one after the other, each on the images that the model still classifies correctly."""
    require_pixels(images)
    adversarial = images.clone()
    broken_by = torch.full_like(labels, len(parts))
    broken_by[~classify(model, images, labels).correct] = -1
    for group, rows in enumerate(torch.arange(len(images), device=images.device).split(GROUP)):
        for number, part in enumerate(parts):
            left = rows[broken_by[rows] == len(parts)]
            if len(left) == 0:
                break
            x, y = images[left], labels[left]
            found = _perturb(part, model, x, y, budget, derived_seed(seed, part.name, group))
            wrong = ~classify(model, found, y).correct
            adversarial[left] = torch.where(per_row(wrong, x), found, x)
            broken_by[left[wrong]] = number
    verdict = classify(model, adversarial, labels)
    return Outcome(verdict.rank, adversarial, tuple(part.name for part in parts), broken_by)


def _perturb(part: _Part, model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
    if classes < 4:
        raise ValueError(f"AutoAttack needs four classes or more, got {classes}.")
    devices = [images.device] if images.device.type == "cuda" else []
    common = {"norm": _NORMS[budget.norm], "eps": budget.radius, "seed": seed, "device": images.device}
    single = _SinglePrecision(model, images.dtype)
    with torch.random.fork_rng(devices=devices), _default_dtype(torch.float32):
        try:
            attack = part.make(single, classes, common)
        except ImportError as error:
            raise ImportError(
                "AutoAttack needs the package pyautoattack: pip install 'resolvent[robustness]'."
            ) from error
        found = attack.perturb(images.float(), labels)
    return budget.project(images, found.to(images))


class _SinglePrecision(nn.Module):
    """A float32 wrapper: the library computes in float32, the model in its own precision."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype, self.default = model, dtype, torch.get_default_dtype()

    def forward(self, images: Tensor) -> Tensor:
        with _default_dtype(self.default):
            scores: Tensor = self.model(images.to(self.dtype))
        # The library modifies the scores in place.
        return scores.to(torch.float32, copy=True)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
