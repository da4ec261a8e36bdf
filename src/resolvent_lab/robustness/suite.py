"""The evaluation of several models by all attacks, as one dictionary that can be written as JSON."""

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.analysis import lipschitz_bound
from resolvent_lab.robustness.attack import Attack, RecordPath
from resolvent_lab.robustness.certificates import certified_accuracy, certified_radii, refuted
from resolvent_lab.robustness.ensemble import GROUP
from resolvent_lab.robustness.gradient import Transfer
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, classify, fraction, masked, worst_case
from resolvent_lab.robustness.sizes import FULL, Size
from resolvent_lab.robustness.solving import attackable

Record = dict[str, Any]

SUMMARY = ("worst case", "masked", "certificates refuted")
"""Names of the summary of a group of attacks. All other numbers of the group are accuracies under one attack."""


def evaluate(
    models: Mapping[str, nn.Module],
    images: Tensor,
    labels: Tensor,
    seed: int = 0,
    size: Size = FULL,
    batch_size: int = BATCH_SIZE,
) -> Record:
    """Evaluates models on the same images: noise, corruptions, attacks and certificates.

    Each model is also shown the images that PGD found for the others. All numbers are fractions of the images. They
    depend on the seed but not on the batch size.

    Arguments:
        models: by name; they map images to scores.
        images: (n, channels, height, width), in [0, 1].
        labels: (n,), the correct classes.
        seed: of all random numbers.
        size: the attacks, `QUICK`, `FULL`, `THOROUGH` or one of your own.
        batch_size: images per forward pass.

    Returns:
        "settings", and under "models" for each model "clean", "noise", "corruptions", "attacks" by budget, and
        "certificates".
    """
    case = (images, labels, seed, batch_size)
    with ExitStack() as stack:
        models = {name: stack.enter_context(attackable(model, size.rtol)) for name, model in models.items()}
        results = {name: _Results(model, images, labels, size, batch_size) for name, model in models.items()}
        for attack in size.attacks:
            outcomes = {name: attack(model, *case) for name, model in models.items()}
            for name, outcome in outcomes.items():
                results[name].add(attack, outcome)
            if attack.transfers:
                _transfer(attack, outcomes, models, case, results)
    return {
        "settings": _settings(images, seed, size),
        "models": {name: result.record() for name, result in results.items()},
    }


def _transfer(
    attack: Attack,
    outcomes: Mapping[str, Outcome],
    models: Mapping[str, nn.Module],
    case: tuple[Tensor, Tensor, int, int],
    results: "Mapping[str, _Results]",
) -> None:
    """Shows each model the images that an attack found for the others."""
    for name, model in models.items():
        for source, outcome in outcomes.items():
            if source != name:
                transfer = Transfer(attack, source, outcome.images)
                results[name].add(transfer, transfer(model, *case))


class _Results:
    """What is known of one model: its accuracy, its certificates, and the outcomes of attacks as they are added."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, size: Size, batch_size: int) -> None:
        self.images = images
        self.searches: dict[RecordPath, list[tuple[Attack, Outcome]]] = {}
        self.stored: Record = {}
        clean = classify(model, images, labels, batch_size)
        for k in (1, 2):
            _store(self.stored, ("clean", f"top {k}"), fraction(clean.top(k)))
        self.radii, certificates = _certify(model, images, labels, size, batch_size)
        self.stored |= {"noise": {}, "corruptions": {}, "attacks": {}, "certificates": certificates}

    def add(self, attack: Attack, outcome: Outcome) -> None:
        for path, value in attack.record(outcome).items():
            _store(self.stored, path, value)
        if attack.searches:
            self.searches.setdefault(attack.path[:2], []).append((attack, outcome))

    def record(self) -> Record:
        """All results, with a summary of each group of attacks that search for the worst images."""
        for group, searches in self.searches.items():
            for name, value in self._summary(searches).items():
                _store(self.stored, (*group, name), value)
        return self.stored

    def _summary(self, searches: list[tuple[Attack, Outcome]]) -> Record:
        outcomes = [outcome for _, outcome in searches]
        withstands_all = worst_case(outcomes)
        by_gradients = torch.stack([attack.withstands_gradients(outcome) for attack, outcome in searches]).all(dim=0)
        contradictions = [] if self.radii is None else [refuted(self.radii, self.images, each) for each in outcomes]
        values = (
            fraction(withstands_all),
            fraction(masked(by_gradients, withstands_all)),
            sum(int(flags.sum()) for flags in contradictions),
        )
        return dict(zip(SUMMARY, values, strict=True))


def _store(record: Record, path: RecordPath, value: Any) -> None:
    for key in path[:-1]:
        record = record.setdefault(key, {})
    record[path[-1]] = value


def _certify(
    model: nn.Module, images: Tensor, labels: Tensor, size: Size, batch_size: int
) -> tuple[Tensor | None, Record]:
    """The certified radii, if the model has any, and the record of the certificates."""
    try:
        bound = lipschitz_bound(model, tuple(images.shape[1:]))
    except ValueError as error:
        return None, {"lipschitz": None, "reason": str(error), "accuracy": None}
    radii = certified_radii(model, images, labels, bound, batch_size)
    return radii, {"lipschitz": bound, "accuracy": certified_accuracy(radii, size.distances)}


def _settings(images: Tensor, seed: int, size: Size) -> Record:
    return {
        "seed": seed,
        "images": len(images),
        "size": dataclasses.asdict(size),
        "attacks": sorted({"/".join(attack.path) for attack in size.attacks}),
        "group": GROUP,
        "precision": str(images.dtype).removeprefix("torch."),
        "device": str(images.device),
        "versions": {name: version(name) for name in ("torch", "pyautoattack", "resolvent")},
    }
