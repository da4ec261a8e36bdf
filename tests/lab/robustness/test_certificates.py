"""No attack gets the better of a certificate, and a wrong certificate does not go unnoticed."""

import math

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from lab.robustness.classifiers import linear_case, patterns, theta_network, train
from resolvent_lab.robustness import (
    FGSM,
    PGD,
    AutoAttack,
    Budget,
    Effort,
    Outcome,
    Transfer,
    attackable,
    certified_accuracy,
    certified_radii,
    classify,
    gaussian_noise,
    refuted,
)


def suite(model: nn.Module, surrogate: nn.Module, images: Tensor, labels: Tensor, budget: Budget) -> list[Outcome]:
    ascent = PGD(budget, steps=5)
    found = ascent(surrogate, images, labels).images
    attacks = (FGSM(budget), ascent, AutoAttack(budget, Effort(5, 2, 3, 10)), Transfer(ascent, "surrogate", found))
    return [
        *(attack(model, images, labels) for attack in attacks),
        classify(model, budget.project(images, gaussian_noise(images, 1.0, 0)), labels),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("theta", "trained"), [(0.0, False), (0.5, False), (0.5, True), (1.0, True)])
def test_certificates_withstand_the_suite(theta: float, trained: bool) -> None:
    model, surrogate = theta_network(theta), theta_network(0.0)
    if trained:
        train(model, *patterns(60)), train(surrogate, *patterns(60))
    images, _ = patterns(20, seed=1)
    with attackable(model, 1e-9), attackable(surrogate):
        labels = model(images).argmax(dim=1)
        radii = certified_radii(model, images, labels)
        assert bool((radii > 0).all())
        attacked = 0
        for budget in (Budget("l2", 0.99 * float(radii.median())), Budget("linf", float(radii.median()) / 10)):
            for outcome in suite(model, surrogate, images, labels, budget):
                assert not refuted(radii, images, outcome).any()
                attacked += int((Budget("l2", 1.0).distance(images, outcome.images) < radii).sum())
        assert attacked > 50, "many attempts were made inside of the radii"
        far = Budget("l2", 40 * float(radii.max()))
        outcomes = suite(model, surrogate, images, labels, far)
        assert not any(refuted(radii, images, outcome).any() for outcome in outcomes)
        if trained:  # A network that was not may give all images one class, at any distance.
            assert any(refuted(100 * radii, images, outcome).any() for outcome in outcomes), "too large a radius shows"


def test_radii_of_a_linear_classifier() -> None:
    """With two classes only the factor between |w_0 - w_1| and sqrt(2) |W| is lost."""
    model, images, labels, distances, _ = linear_case(2, "l2")
    radii = certified_radii(model, images, labels)
    weight = model[1].weight.detach()
    factor = float((weight[0] - weight[1]).norm() / (math.sqrt(2) * torch.linalg.matrix_norm(weight, 2)))
    assert 0 < factor <= 1
    torch.testing.assert_close(radii, factor * distances, rtol=1e-6, atol=0)
    wrong = labels.clone()
    wrong[0] = 1 - wrong[0]
    assert certified_radii(model, images, wrong)[0] == -math.inf
    constant = float((weight[0] - weight[1]).norm() / math.sqrt(2))
    torch.testing.assert_close(certified_radii(model, images, labels, constant, batch_size=7), distances)


def test_the_curve_starts_at_the_accuracy_and_falls() -> None:
    radii = torch.tensor([-math.inf, 0.0, 0.1, 0.3])
    assert certified_accuracy(radii, (0.0, 0.1, 0.2, 0.4)) == [0.75, 0.5, 0.25, 0.0]


def test_an_understated_lipschitz_constant_is_refuted() -> None:
    honest = train(theta_network(0.0), *patterns(60))
    field = rs.Autonomous(nn.Linear(8, 8), lipschitz=1e-6)
    liar = nn.Sequential(honest[0], honest[1], rs.ThetaBlock(field, 0.0, 1), nn.Linear(8, 4))
    nn.init.normal_(field.module.weight, std=30.0)
    images, _ = patterns(20, seed=1)
    labels = liar(images).argmax(dim=1)
    radii = certified_radii(liar, images, labels)
    outcome = PGD(Budget("l2", float(radii.median())), steps=5)(liar, images, labels)
    assert refuted(radii, images, outcome).any()
