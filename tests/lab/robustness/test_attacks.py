"""Attacks on models with a known answer; what they may not do, and what they must not depend on."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.robustness.classifiers import PIXELS, SIZE, Blind, Linear, linear_case, patterns, theta_network, train
from resolvent_lab.robustness import (
    FGSM,
    PGD,
    Adversarial,
    AutoAttack,
    Budget,
    Effort,
    Square,
    Transfer,
    adversarial_images,
)
from seeding import shifted

NORMS = ("linf", "l2")
SMALL = Effort(apgd_steps=20, targets=9, fab_steps=10, queries=20)
Make = Callable[[Budget], Adversarial]
ATTACKS: dict[str, Make] = {
    "fgsm": FGSM,
    "pgd": lambda budget: PGD(budget, steps=10, restarts=2),
    "apgd-ce": lambda budget: AutoAttack(budget, Effort(20, 0, 0, 0)),
    "ensemble": lambda budget: AutoAttack(budget, SMALL),
    "square": lambda budget: Square(budget, queries=50),
}
SEED = shifted(0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fgsm", "pgd"])
def test_gradients_find_the_nearest_point_of_the_only_plane(name: str, norm: str) -> None:
    model, images, labels, distances, budget = linear_case(2, norm)
    outcome = ATTACKS[name](budget)(model, images, labels, SEED)
    assert not outcome.correct[distances < 0.98 * budget.radius].any()
    assert outcome.correct[distances > budget.radius].all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_ensemble_finds_the_nearest_of_many_planes(norm: str) -> None:
    model, images, labels, distances, budget = linear_case(10, norm)
    outcome = AutoAttack(budget, SMALL)(model, images, labels)
    assert not outcome.correct[distances < 0.98 * budget.radius].any()
    assert outcome.correct[distances > budget.radius].all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_succeeds_or_goes_beyond_its_budget(name: str, norm: str) -> None:
    model, images, labels, distances, _ = linear_case(10, norm)
    within = Budget(norm, 0.999 * float(distances.min()))
    assert ATTACKS[name](within)(model, images, labels, SEED).correct.all()
    wide = Budget(norm, 20 * within.radius)
    outcome = ATTACKS[name](wide)(model, images, labels, SEED)
    assert bool((wide.distance(images, outcome.images) <= wide.radius * (1 + 1e-12)).all())
    assert bool(((outcome.images >= 0) & (outcome.images <= 1)).all())
    assert torch.equal(outcome.correct, model(outcome.images).argmax(dim=1) == labels)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_pixels_stay_within_their_range(name: str, norm: str) -> None:
    model, images = Linear(10), torch.randint(2, (10, 1, SIZE, SIZE)).double()
    attack = ATTACKS[name](Budget(norm, 3.0 if norm == "l2" else 0.3))
    outcome = attack(model, images, model(images).argmax(dim=1), SEED)
    assert bool(((outcome.images >= 0) & (outcome.images <= 1)).all())
    assert not outcome.correct.all()


@pytest.mark.parametrize("norm", NORMS)
def test_squares_alone_succeed_with_a_larger_budget(norm: str) -> None:
    model, images, labels, distances, _ = linear_case(10, norm)
    budget = Budget(norm, 8 * float(distances.max()))
    assert not Square(budget, 200)(model, images, labels).correct.any()


@pytest.mark.parametrize("attack", [FGSM(Budget("l2", 0.5)), PGD(Budget("l2", 0.5), steps=4)], ids=["fgsm", "pgd"])
def test_batches_make_no_difference(attack: Adversarial) -> None:
    model, (images, labels) = theta_network(), patterns(11)
    whole = attack(model, images, labels, SEED)
    parts = attack(model, images, labels, SEED, batch_size=3)
    few = attack(model, images[:4], labels[:4], SEED)
    torch.testing.assert_close(parts.images, whole.images, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(few.images, whole.images[:4], rtol=1e-8, atol=1e-8)
    assert torch.equal(parts.rank, whole.rank)


def test_groups_are_attacked_alike_in_every_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent_lab.robustness.ensemble.GROUP", 5)
    model, (images, labels) = train(theta_network(), *patterns(40)), patterns(12, seed=1)
    attack = AutoAttack(Budget("linf", 0.2), Effort(4, 2, 3, 10))
    whole = attack(model, images, labels)
    few = attack(model, images[:10], labels[:10])
    assert torch.equal(few.images, whole.images[:10])
    assert torch.equal(few.broken_by, whole.broken_by[:10])


@pytest.mark.parametrize(
    "attack",
    [PGD(Budget("l2", 1.5), steps=3), AutoAttack(Budget("l2", 1.5), Effort(3, 1, 0, 10))],
    ids=["pgd", "autoattack"],
)
def test_the_seed_and_nothing_else_decides(attack: Adversarial) -> None:
    model, (images, labels) = train(theta_network(), *patterns(40)), patterns(8, seed=1)

    def run(seed: int) -> Tensor:
        return attack(model, images, labels, seed).images

    torch.manual_seed(shifted(1))
    first = run(0)
    state = torch.get_rng_state()
    torch.manual_seed(shifted(2))
    assert torch.equal(run(0), first)
    assert not torch.equal(run(1), first)
    torch.manual_seed(shifted(1))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    assert torch.get_default_dtype() == torch.float64


def test_restarts_start_elsewhere() -> None:
    model, images, labels, _, budget = linear_case(4, "l2")
    blind = Blind(model)
    once, often = (PGD(budget, 1, restarts)(blind, images, labels) for restarts in (1, 20))
    assert often.accuracy < once.accuracy


def test_restarts_and_transfers_add_up() -> None:
    model, surrogate = (train(theta_network(theta), *patterns(60)) for theta in (1.0, 0.0))
    images, labels = patterns(40, seed=1)
    budget = Budget("l2", 1.6)
    once, thrice = (PGD(budget, 5, restarts)(model, images, labels).correct for restarts in (1, 3))
    assert bool((thrice <= once).all())
    attack = PGD(budget, steps=5)
    made = attack(surrogate, images, labels)
    transferred = Transfer(attack, "surrogate", made.images)(model, images, labels)
    assert torch.equal(transferred.images, made.images)
    assert torch.equal(transferred.correct, model(made.images).argmax(dim=1) == labels)
    assert 0 < transferred.accuracy < 1


def test_the_account_of_an_ensemble() -> None:
    model, (images, labels) = train(theta_network(), *patterns(60)), patterns(30, seed=1)
    labels[:3] = (labels[:3] + 1) % 4
    attack = AutoAttack(Budget("l2", 1.0), Effort(5, 3, 3, 10))
    outcome = attack(model, images, labels)
    assert outcome.attacks == ("apgd-ce", "apgd-t", "fab-t", "square")
    assert outcome.broken_by[:3].tolist() == [-1, -1, -1]
    assert torch.equal(outcome.images[:3], images[:3])
    assert torch.equal(outcome.correct, outcome.broken_by == 4)
    assert 0 < outcome.accuracy < 1
    after = [outcome.accuracy_after(name) for name in outcome.attacks]
    assert after == sorted(after, reverse=True)
    assert after[-1] == outcome.accuracy
    assert torch.equal(attack.withstands_gradients(outcome), outcome.broken_by >= 3)


def test_training_on_adversarial_images_turns_to_what_is_robust() -> None:
    """One pixel tells the class of 95 % and is hard to change; all the others tell it faintly, but of everybody."""
    labels = torch.randint(2, (400,))
    sign = 2.0 * labels - 1
    images = 0.5 + 0.03 * (sign[:, None] * (-1.0) ** torch.arange(PIXELS) + torch.randn(400, PIXELS))
    strong = torch.where(torch.rand(400) < 0.95, sign, -sign)
    images[:, 0] = 0.5 + 0.3 * strong
    images = images.reshape(-1, 1, SIZE, SIZE)
    budget = Budget("linf", 0.06)

    def robust_accuracy(adversarial: bool) -> float:
        model = Linear(2)
        nn.init.zeros_(model[1].weight), nn.init.zeros_(model[1].bias)
        optimiser = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(100):
            x = adversarial_images(model, images, labels, budget, steps=3) if adversarial else images
            optimiser.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimiser.step()
        return PGD(budget, steps=10)(model, images, labels).accuracy

    assert robust_accuracy(adversarial=False) < 0.2
    assert robust_accuracy(adversarial=True) > 0.9


def test_adversarial_images_leave_the_model_as_it_was() -> None:
    model, (images, labels) = nn.Sequential(nn.BatchNorm2d(1), *theta_network()), patterns(6)
    frozen = model[2].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    budget = Budget("l2", 0.5)
    torch.manual_seed(shifted(5))
    first = adversarial_images(model, images, labels, budget)
    torch.manual_seed(shifted(5))
    assert torch.equal(adversarial_images(model, images, labels, budget), first)
    assert bool((budget.distance(images, first) <= 0.5 * (1 + 1e-12)).all())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter for parameter in model.parameters() if not parameter.requires_grad] == [frozen]
    assert all(module.training for module in model.modules())
    assert not first.requires_grad


def test_refusals() -> None:
    model, images = Linear(3), torch.rand(2, 1, SIZE, SIZE)
    labels = model(images).argmax(dim=1)
    with pytest.raises(ValueError, match=r"norm must be one of .* got 'l1'"):
        Budget("l1", 1.0)
    with pytest.raises(ValueError, match="radius must be more than 0, got 0"):
        Budget("l2", 0)
    with pytest.raises(ValueError, match="AutoAttack needs four classes or more, got 3"):
        AutoAttack(Budget("l2", 1.0))(model, images, labels)
    for make in ATTACKS.values():
        with pytest.raises(ValueError, match=r"pixels must lie in \[0, 1\], got some from .* to 1\."):
            make(Budget("l2", 1.0))(Linear(4), images + 1, labels)


def test_tiny_gradients_still_have_a_direction() -> None:
    gradient = torch.tensor([[[[3e-30, 4e-30]]], [[[0.0, 0.0]]]], dtype=torch.float32)
    ascent = Budget("l2", 1.0).ascent(gradient)
    torch.testing.assert_close(ascent, torch.tensor([[[[0.6, 0.8]]], [[[0.0, 0.0]]]], dtype=torch.float32))
