"""The whole evaluation: what it writes, that it repeats itself, and that it sees through masked gradients."""

import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

from lab.robustness.classifiers import Blind, linear_case, patterns, theta_network, train
from resolvent.models import implicit_resnet18
from resolvent_lab.robustness import (
    FULL,
    QUICK,
    THOROUGH,
    Adversarial,
    Budget,
    Effort,
    Size,
    classify,
    evaluate,
    masked,
)

SMALL = dataclasses.replace(QUICK, budgets=(Budget("linf", 0.1), Budget("l2", 1.0)), rtol=1e-9)


@pytest.fixture
def models() -> dict[str, nn.Module]:
    return {f"theta={theta}": train(theta_network(theta), *patterns(60)) for theta in (0.0, 1.0)}


@pytest.mark.slow
def test_one_record_whatever_the_batch_size(models: dict[str, nn.Module]) -> None:
    images, labels = patterns(8, seed=1)
    record = evaluate(models, images, labels, seed=3, size=SMALL)
    assert json.loads(json.dumps(record)) == json.loads(json.dumps(evaluate(models, images, labels, 3, SMALL, 3)))
    assert record["models"] != evaluate(models, images, labels, seed=4, size=SMALL)["models"]
    settings = record["settings"]
    assert settings["seed"] == 3
    assert settings["images"] == 8
    assert settings["precision"] == "float64"
    assert settings["size"]["budgets"][0] == {"norm": "linf", "radius": 0.1}
    assert settings["versions"].keys() == {"torch", "pyautoattack", "resolvent"}
    for name, report in record["models"].items():
        assert report.keys() == {"clean", "noise", "corruptions", "attacks", "certificates"}
        assert report["noise"]["0"]["unclamped"]["top 1"] == [report["clean"]["top 1"]]
        assert report["clean"]["top 2"] >= report["clean"]["top 1"] > 0.5
        assert report["corruptions"].keys() == {corruption.name for corruption in SMALL.corruptions}
        assert report["certificates"]["accuracy"][0] == report["clean"]["top 1"]
        for budget in SMALL.budgets:
            attacks = report["attacks"][str(budget)]
            single = [attacks[attack] for attack in ("fgsm", "pgd", "autoattack")]
            assert attacks["worst case"] <= min(*single, *attacks["transfer from"].values())
            assert attacks["transfer from"].keys() == models.keys() - {name}
            assert attacks["certificates refuted"] == 0


def test_masked_gradients_show() -> None:
    """The same model, once with its gradients and once without: neither is the more robust."""
    model, images, labels, distances, _ = linear_case(10, "l2")
    far = distances > 0.5 * distances.max()  # A random start does not get there.
    images, labels, radius = images[far], labels[far], 2 * float(distances.max())
    size = dataclasses.replace(SMALL, budgets=(Budget("l2", radius),), effort=Effort(5, 3, 0, 0))
    record = evaluate({"honest": model, "masked": Blind(model)}, images, labels, size=size)["models"]
    honest, hidden = (record[name]["attacks"][str(size.budgets[0])] for name in ("honest", "masked"))
    assert honest["pgd"] == honest["worst case"] == honest["masked"] == 0
    assert hidden["fgsm"] == 1
    assert hidden["pgd"] > 0.8
    assert hidden["autoattack"] > 0.8
    assert hidden["worst case"] == hidden["transfer from"]["honest"] == 0
    assert hidden["masked"] > 0.8
    alone = dataclasses.replace(size, effort=Effort(5, 0, 0, 3000))  # Enough to get anywhere without a gradient.
    (lonely,) = evaluate({"masked": Blind(model)}, images, labels, size=alone)["models"]["masked"]["attacks"].values()
    assert lonely["masked"] > 0.5
    assert lonely["worst case"] < 0.3


def test_noise_is_clamped_where_it_says_so() -> None:
    class Picture(nn.Module):
        """Is right about what has the pixels of a picture."""

        def forward(self, images: Tensor) -> Tensor:
            inside = ((images >= 0) & (images <= 1)).flatten(1).all(dim=1).double()
            return torch.stack((inside, 1 - inside, -torch.ones_like(inside)), dim=1)

    images, labels = torch.rand(5, 1, 10, 10), torch.zeros(5, dtype=torch.int64)
    size = dataclasses.replace(SMALL, budgets=(), sigmas=(0.5,), draws=3)
    noise = evaluate({"a": Picture()}, images, labels, size=size)["models"]["a"]["noise"]["0.5"]
    assert noise["clamped"] == {"top 1": [1.0] * 3, "top 2": [1.0] * 3}
    assert noise["unclamped"] == {"top 1": [0.0] * 3, "top 2": [1.0] * 3}


def test_masked_counts_what_only_the_others_break() -> None:
    by_gradients = torch.tensor([True, True, False, False])
    by_all = torch.tensor([True, False, False, False])
    assert masked(by_gradients, by_all).tolist() == [False, True, False, False]


def test_a_model_without_certificates_says_why() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 10), nn.LayerNorm(10))
    images, labels = patterns(4)
    certificates = evaluate({"a": model}, images, labels, size=SMALL)["models"]["a"]["certificates"]
    assert certificates["accuracy"] is None
    assert "LayerNorm" in certificates["reason"]


def test_the_network_of_the_experiment_in_single_precision() -> None:
    model = implicit_resnet18(1.0, channels=2, normalization="bounded", low=-1.0, high=0.5).float()
    images = torch.rand(3, 1, 28, 28, dtype=torch.float32)
    labels = model(images).argmax(dim=1)
    record = evaluate({"resnet": model}, images, labels, size=dataclasses.replace(QUICK, budgets=QUICK.budgets[:1]))
    assert record["models"]["resnet"]["clean"]["top 1"] == 1
    assert record["settings"]["precision"] == "float32"


@pytest.mark.parametrize("size", [QUICK, FULL, THOROUGH])
def test_sizes_can_be_written(size: Size) -> None:
    assert json.loads(json.dumps(dataclasses.asdict(size)))["effort"]["queries"] == size.effort.queries
    assert {budget.norm for budget in size.budgets} == {"l2", "linf"}


@dataclasses.dataclass(frozen=True)
class Inversion(Adversarial):
    """Shows the negative of an image, whatever its budget."""

    budget: Budget
    name = "inversion"

    def __call__(self, model, images, labels, seed=0, batch_size=500):
        return classify(model, 1 - images, labels, batch_size)


def test_an_attack_of_one_s_own_joins_by_a_line(models: dict[str, nn.Module]) -> None:
    @dataclasses.dataclass(frozen=True)
    class WithInversion(Size):
        @property
        def attacks(self):
            return (Inversion(Budget("linf", 1.0)),)

    images, labels = patterns(8, seed=1)
    report = evaluate(models, images, labels, size=WithInversion())["models"]["theta=0.0"]["attacks"]
    right = (models["theta=0.0"](1 - images).argmax(1) == labels).double().mean().item()
    assert report["linf 1"]["inversion"] == report["linf 1"]["worst case"] == right
    assert report["linf 1"]["masked"] == 1 - right
