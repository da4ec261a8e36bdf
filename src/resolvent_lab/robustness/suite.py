"""The whole evaluation of several models, as one dictionary that can be written as JSON."""

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn

from resolvent.analysis import lipschitz_bound
from resolvent_lab.robustness.budget import Budget
from resolvent_lab.robustness.certificates import certified_accuracy, certified_radii, refuted
from resolvent_lab.robustness.corruptions import CORRUPTIONS
from resolvent_lab.robustness.ensemble import GROUP, Ensemble, autoattack
from resolvent_lab.robustness.gradient import fgsm, pgd
from resolvent_lab.robustness.noise import noise_outcomes
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, fraction, judge, masked, worst_case
from resolvent_lab.robustness.sizes import FULL, Size
from resolvent_lab.robustness.solving import attackable

Record = dict[str, Any]


def evaluate(
    models: Mapping[str, nn.Module],
    images: Tensor,
    labels: Tensor,
    seed: int = 0,
    size: Size = FULL,
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
        size: how much is done, `QUICK`, `FULL`, `THOROUGH` or one of your own.
        batch_size: images in one pass.

    Returns:
        "settings", and under "models" for each of them "clean", "noise", "corruptions", "attacks" by budget, and
        "certificates".
    """
    task = _Task(images, labels, seed, size, batch_size)
    with ExitStack() as stack:
        models = {name: stack.enter_context(attackable(model, size.rtol)) for name, model in models.items()}
        records = {name: _by_chance(model, task) for name, model in models.items()}
        certain = {name: _certify(model, task) for name, model in models.items()}
        for budget in size.budgets:
            ascents = {name: task.ascend(model, budget) for name, model in models.items()}
            for name, model in models.items():
                attacked = _attack(name, model, task, budget, ascents)
                records[name]["attacks"][str(budget)] = _summarise(attacked, certain[name][1], images)
    for name, (record, radii) in certain.items():
        curve = None if radii is None else certified_accuracy(radii, size.distances)
        records[name]["certificates"] = record | {"accuracy": curve}
    return {"settings": _settings(task), "models": records}


@dataclasses.dataclass(frozen=True)
class _Task:
    """What all models are asked to do; the attributes are the arguments of `evaluate`."""

    images: Tensor
    labels: Tensor
    seed: int
    size: Size
    batch_size: int

    def judge(self, model: nn.Module, images: Tensor) -> Outcome:
        return judge(model, images, self.labels, self.batch_size)

    def ascend(self, model: nn.Module, budget: Budget) -> Outcome:
        steps, restarts = self.size.steps, self.size.restarts
        return pgd(model, self.images, self.labels, budget, self.seed, steps, restarts, self.batch_size)

    def with_noise(self, model: nn.Module, sigma: float, clamp: bool) -> Record:
        options = (sigma, self.seed, self.size.draws, clamp, self.batch_size)
        outcomes = noise_outcomes(model, self.images, self.labels, *options)
        return {f"top {k}": [fraction(outcome.top(k)) for outcome in outcomes] for k in (1, 2)}


def _by_chance(model: nn.Module, task: _Task) -> Record:
    """What no attacker had a hand in, and an empty record of what they did."""
    clean = task.judge(model, task.images)
    return {
        "clean": {f"top {k}": fraction(clean.top(k)) for k in (1, 2)},
        "noise": {
            f"{sigma:g}": {
                "unclamped": task.with_noise(model, sigma, clamp=False),
                "clamped": task.with_noise(model, sigma, clamp=True),
            }
            for sigma in task.size.sigmas
        },
        "corruptions": {
            name: {
                f"{severity:g}": task.judge(model, CORRUPTIONS[name](task.images, severity, task.seed)).accuracy
                for severity in severities
            }
            for name, severities in task.size.severities.items()
        },
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
    def withstands_gradients(self) -> Tensor:
        return self.fgsm.correct & self.pgd.correct & self.ensemble.withstands_gradients


def _attack(name: str, model: nn.Module, task: _Task, budget: Budget, ascents: Mapping[str, Outcome]) -> _Attacked:
    return _Attacked(
        fgsm(model, task.images, task.labels, budget, task.batch_size),
        ascents[name],
        autoattack(model, task.images, task.labels, budget, task.seed, task.size.effort),
        {other: task.judge(model, made.images) for other, made in ascents.items() if other != name},
    )


def _summarise(attacked: _Attacked, radii: Tensor | None, images: Tensor) -> Record:
    ensemble = attacked.ensemble
    withstands_all = worst_case(attacked.all)
    contradictions = [] if radii is None else [refuted(radii, images, outcome) for outcome in attacked.all]
    return {
        "fgsm": attacked.fgsm.accuracy,
        "pgd": attacked.pgd.accuracy,
        "autoattack": ensemble.accuracy,
        "autoattack, after": {attack: ensemble.accuracy_after(attack) for attack in ensemble.attacks},
        "transfer from": {name: outcome.accuracy for name, outcome in attacked.transfers.items()},
        "worst case": fraction(withstands_all),
        "masked": fraction(masked(attacked.withstands_gradients, withstands_all)),
        "certificates refuted": sum(int(flags.sum()) for flags in contradictions),
    }


def _certify(model: nn.Module, task: _Task) -> tuple[Record, Tensor | None]:
    """What there is to say of the certificates, and the radii, if there are any."""
    try:
        bound = lipschitz_bound(model, tuple(task.images.shape[1:]))
    except ValueError as error:
        return {"lipschitz": None, "reason": str(error)}, None
    return {"lipschitz": bound}, certified_radii(model, task.images, task.labels, bound, task.batch_size)


def _settings(task: _Task) -> Record:
    return {
        "seed": task.seed,
        "images": len(task.images),
        "size": dataclasses.asdict(task.size),
        "group": GROUP,
        "precision": str(task.images.dtype).removeprefix("torch."),
        "device": str(task.images.device),
        "versions": {name: version(name) for name in ("torch", "pyautoattack", "resolvent")},
    }
