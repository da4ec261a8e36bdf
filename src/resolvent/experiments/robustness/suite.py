"""The whole evaluation of several models, as one dictionary that can be written as JSON."""

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.experiments.robustness.autoattack import GRADIENT_FREE, GROUP, Ensemble, autoattack
from resolvent.experiments.robustness.budget import Budget
from resolvent.experiments.robustness.certificates import certified_accuracy, certified_radii, refuted
from resolvent.experiments.robustness.corruptions import CORRUPTIONS
from resolvent.experiments.robustness.gradient import fgsm, pgd
from resolvent.experiments.robustness.noise import noise_outcomes
from resolvent.experiments.robustness.outcome import BATCH_SIZE, Outcome, fraction, judge, worst_case
from resolvent.experiments.robustness.sizes import FULL, Size
from resolvent.experiments.robustness.solving import RTOL, attackable
from resolvent.experiments.robustness.transfer import masked

Record = dict[str, Any]


def evaluate(
    models: Mapping[str, nn.Module],
    images: Tensor,
    labels: Tensor,
    seed: int = 0,
    size: Size = FULL,
    rtol: float = RTOL,
    batch_size: int = BATCH_SIZE,
) -> Record:
    """Evaluates models on the same images: noise, corruptions, attacks and certificates.

    Each model is also shown what was found by gradient ascent on each of the others. All numbers are fractions of the
    images; they depend on the seed but not on the batch size.

    Arguments:
        models: by name; images -> scores.
        images: (n, channels, height, width), in [0, 1].
        labels: (n,).
        seed: of everything random.
        size: how much is done, `QUICK`, `FULL` or one of your own.
        rtol: tolerance of the solves, see `attackable`.
        batch_size: images in one pass.

    Returns:
        "settings", and under "models" for each of them "clean", "noise", "corruptions", "attacks" by budget, and
        "certificates".
    """
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(attackable(model, rtol))
        records = {name: _harmless(model, images, labels, seed, size, batch_size) for name, model in models.items()}
        certain = {name: _certify(model, images, labels, batch_size) for name, model in models.items()}
        for budget in size.budgets:
            ascents = {
                name: pgd(model, images, labels, budget, seed, size.steps, size.restarts, batch_size)
                for name, model in models.items()
            }
            for name, model in models.items():
                attacked = _attack(name, model, images, labels, budget, seed, size, ascents, batch_size)
                records[name]["attacks"][str(budget)] = _summarise(attacked, certain[name][1], images)
    for name, (record, radii) in certain.items():
        curve = None if radii is None else certified_accuracy(radii, size.distances)
        records[name]["certificates"] = record | {"accuracy": curve}
    return {"settings": _settings(images, seed, size, rtol), "models": records}


def _harmless(model: nn.Module, images: Tensor, labels: Tensor, seed: int, size: Size, batch_size: int) -> Record:
    """What happens to images by chance."""
    noise: Record = {}
    for sigma in size.sigmas:
        outcomes = {
            kind: noise_outcomes(model, images, labels, sigma, seed, size.draws, kind == "clamped", batch_size)
            for kind in ("unclamped", "clamped")
        }
        noise[f"{sigma:g}"] = {
            kind: {f"top {k}": [fraction(outcome.top(k)) for outcome in draws] for k in (1, 2)}
            for kind, draws in outcomes.items()
        }
    corruptions = {
        name: {
            f"{severity:g}": judge(model, CORRUPTIONS[name](images, severity, seed), labels, batch_size).accuracy
            for severity in severities
        }
        for name, severities in size.severities.items()
    }
    clean = judge(model, images, labels, batch_size)
    return {
        "clean": {f"top {k}": fraction(clean.top(k)) for k in (1, 2)},
        "noise": noise,
        "corruptions": corruptions,
        "attacks": {},
    }


@dataclasses.dataclass(frozen=True)
class _Attacked:
    """The outcomes of all attacks on one model within one budget; those of the transfer by the surrogate's name."""

    fgsm: Outcome
    pgd: Outcome
    ensemble: Ensemble
    transfers: dict[str, Outcome]

    @property
    def all(self) -> list[Outcome]:
        return [self.fgsm, self.pgd, self.ensemble, *self.transfers.values()]

    @property
    def masked(self) -> Tensor:
        """Where gradients lead nowhere, but the square attack or a transfer succeeds."""
        attacks = self.ensemble.attacks
        by_gradients, by_squares = self.ensemble, torch.zeros_like(self.ensemble.correct)
        if GRADIENT_FREE in attacks:
            by_squares = self.ensemble.only_broken_by(GRADIENT_FREE)
            by_gradients = dataclasses.replace(self.ensemble, rank=self.ensemble.rank.masked_fill(by_squares, 0))
        without = [dataclasses.replace(self.ensemble, rank=by_squares.long()), *self.transfers.values()]
        return masked([self.fgsm, self.pgd, by_gradients], without)


def _attack(
    name: str,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    budget: Budget,
    seed: int,
    size: Size,
    ascents: Mapping[str, Outcome],
    batch_size: int,
) -> _Attacked:
    others = {other: made.images for other, made in ascents.items() if other != name}
    return _Attacked(
        fgsm(model, images, labels, budget, batch_size),
        ascents[name],
        autoattack(model, images, labels, budget, seed, size.effort),
        {other: judge(model, made, labels, batch_size) for other, made in others.items()},
    )


def _summarise(attacked: _Attacked, radii: Tensor | None, images: Tensor) -> Record:
    ensemble = attacked.ensemble
    contradictions = [] if radii is None else [refuted(radii, images, outcome) for outcome in attacked.all]
    return {
        "fgsm": attacked.fgsm.accuracy,
        "pgd": attacked.pgd.accuracy,
        "autoattack": ensemble.accuracy,
        "autoattack, after": {attack: ensemble.accuracy_after(attack) for attack in ensemble.attacks},
        "transfer from": {name: outcome.accuracy for name, outcome in attacked.transfers.items()},
        "worst case": fraction(worst_case(attacked.all)),
        "masked": fraction(attacked.masked),
        "certificates refuted": sum(int(flags.sum()) for flags in contradictions),
    }


def _certify(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> tuple[Record, Tensor | None]:
    """What there is to say of the certificates, and the radii, if there are any."""
    try:
        radii = certified_radii(model, images, labels, batch_size=batch_size)
    except ValueError as error:
        return {"reason": str(error)}, None
    certain = radii[radii >= 0]
    return {"median radius": float(certain.median()) if len(certain) else None}, radii


def _settings(images: Tensor, seed: int, size: Size, rtol: float) -> Record:
    return {
        "seed": seed,
        "images": len(images),
        "size": dataclasses.asdict(size),
        "rtol": rtol,
        "group": GROUP,
        "precision": str(images.dtype).removeprefix("torch."),
        "device": str(images.device),
        "versions": {name: version(name) for name in ("torch", "pyautoattack", "resolvent")},
    }
