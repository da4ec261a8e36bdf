"""Example 4: configurations, training and the table of accuracies under noise."""

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lab.experiments.small_network import SMALL
from resolvent_lab.cli import main
from resolvent_lab.experiments import machine
from resolvent_lab.experiments.mnist import attacks, columns
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.measure import HARDER, SIGMAS, cell, noise_table
from resolvent_lab.experiments.mnist.network import Mnist
from resolvent_lab.experiments.mnist.tables import published, tables
from resolvent_lab.experiments.results import Results, collect, judged
from resolvent_lab.experiments.train import fitted
from resolvent_lab.experiments.unfinished import Unfinished
from resolvent_lab.images import ImageModule, Images, Split
from seeding import shifted

TRAIN = ("reproduce", "--train-only", "mnist")


@pytest.fixture(autouse=True)
def _no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    for name in (machine.DEVICE, machine.DATA_DIR):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards, whatever a test makes of it
        monkeypatch.delenv(name)


def bars(count: int = 60) -> Images:
    """Images of four classes: which fourth is bright."""
    labels = torch.arange(count) % 4
    images = 0.1 * torch.rand(count, 1, 8, 8)
    for n, label in enumerate(labels):
        images[n, :, :, 2 * label : 2 * label + 2] += 0.8
    return Images(images, labels)


def module(batch_size: int = 20, seed: int = 0) -> ImageModule:
    data = bars()
    return ImageModule(Split(data, data, data), batch_size, shifted(seed))


def trained(seed: int = 0, **changes: Any) -> Mnist:
    config = MnistConfig(column="x", seed=seed, **(SMALL | changes))
    torch.manual_seed(shifted(seed))
    data = module(config.batch_size, seed)
    network = Mnist(config)
    with tempfile.TemporaryDirectory() as folder:
        fitted(network, data, Unfinished(Path(folder) / "run"))
    return network


def test_a_trained_theta_is_told() -> None:
    network = trained(theta=0.5, learn_theta=True, epochs=1, draws=1)
    thetas = network.measure(module().batches)["thetas"]
    assert len(thetas) == len(network.model.stages)
    assert all(0 < theta < 1 and theta != 0.5 for theta in thetas)


@pytest.mark.parametrize(
    ("training", "schedule"), [("clean", "plateau"), ("noise", "constant"), ("adversarial", "onecycle")]
)
def test_it_learns(training: str, schedule: str) -> None:
    network = trained(training=training, schedule=schedule, attack_steps=1, epochs=20, init="xavier")
    loss = network.curves["loss"]
    assert len(loss) == 20
    assert loss[-1] < 0.8 * loss[0]


def test_the_learning_rate_follows_its_schedule(tmp_path: Path) -> None:
    rates: dict[str, list[float]] = {}
    for schedule in ("constant", "onecycle"):
        network = Mnist(MnistConfig(column="x", seed=0, **(SMALL | {"schedule": schedule, "epochs": 8})))
        seen = rates.setdefault(schedule, [])
        fitted(
            network,
            module(),
            Unfinished(tmp_path / schedule),
            lambda _, n=network, s=seen: s.append(n.optimizers().param_groups[0]["lr"]),
        )
    assert rates["constant"] == [0.01] * 9  # at the start, and after each epoch
    assert max(rates["onecycle"]) > 2 * rates["onecycle"][0]
    assert rates["onecycle"][-2] < 0.1 * max(rates["onecycle"])


@pytest.mark.parametrize(
    ("theta", "normalization", "alpha"),
    [(0.0, "bounded", 0.01), (1.0, "free", 0.01), (1.0, "gradient", 0.01), (0.0, "batch", 0.0)],
)
def test_each_kind_of_network_takes_a_step(theta: float, normalization: str, alpha: float) -> None:
    network = trained(theta=theta, normalization=normalization, alpha_div=alpha, epochs=1)
    assert (network.curves["penalty"][0] != 0) == (alpha != 0)
    assert network.curves["failed_solves"] == [0.0]


@pytest.mark.parametrize("normalization", ["bounded", "free", "batch", "gradient", "bounded-gradient"])
def test_the_weights_of_linear_maps_decay_and_nothing_else(normalization: str) -> None:
    changes = {"normalization": normalization, "weight_decay": 0.1, "schedule": "constant", "transition_bound": 1.0}
    network = Mnist(MnistConfig(column="x", seed=0, **(SMALL | changes)))
    decaying, others = network.configure_optimizers().param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    sort = [{names.pop(id(parameter)) for parameter in group["params"]} for group in (decaying, others)]
    assert not names  # each parameter is in one group, and in one alone
    convolutions = 1 if "gradient" in normalization else 2
    assert len(sort[0]) == 3 * convolutions + 4  # three layers; the stem, two maps between the stages, the head
    assert all(name.endswith(("weight", "weight.original")) and "norms" not in name for name in sort[0])
    assert all(name.endswith(("bias", "raw_scale")) or "norms" in name for name in sort[1])


@pytest.mark.parametrize("normalization", ["free", "batch"])
def test_weights_without_a_gradient_shrink_and_scales_do_not(normalization: str) -> None:
    changes = {"normalization": normalization, "weight_decay": 0.1, "schedule": "constant", "learn_theta": False}
    network = Mnist(MnistConfig(column="x", seed=0, **(SMALL | changes)))
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    network.configure_optimizers().step()
    for name, parameter in network.named_parameters():
        decays = name.endswith("weight") and "norms" not in name
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.01 * 0.1 * decays))


def test_failed_solves_are_counted_and_do_not_end_the_training() -> None:
    network = trained(theta=1.0, learn_scale=False, scale=30.0, solver="picard", epochs=1)
    assert network.curves["failed_solves"][0] > 0
    assert network.curves["loss"][0] > 0


def test_a_seed_decides_the_training() -> None:
    one, two, other = trained(epochs=2), trained(epochs=2), trained(seed=1, epochs=2)
    assert one.curves == two.curves
    assert one.curves != other.curves


class Brightest(nn.Module):
    """Knows the class of a bar: the brightest fourth."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[..., 2 * k : 2 * k + 2].mean((1, 2, 3)) for k in range(4)], dim=1)


def test_table_of_a_model_with_known_accuracy() -> None:
    data = bars()
    table = noise_table(Brightest(), "train", data, draws=2)  # type: ignore[arg-type]
    assert set(table) == {
        cell("train", sigma, top, clamped)
        for sigma in (*SIGMAS, *HARDER)
        for top in (1, 2)
        for clamped in (False, True)
    }
    assert table[cell("train", 0.0)] == table[cell("train", 0.1)] == 100.0
    wrong = data._replace(labels=(data.labels + 1) % 4)
    assert noise_table(Brightest(), "train", wrong, draws=1)[cell("train", 0.1)] == 0.0  # type: ignore[arg-type]


def test_the_table_does_not_depend_on_the_batch_size() -> None:
    model = trained(theta=0.5, epochs=5).model.eval()
    data = bars(12)
    small, large = (noise_table(model, "train", data, draws=1, batch_size=size) for size in (5, 12))
    assert small == large
    assert len(set(small.values())) > 3  # the noise does matter


def test_the_paper_s_numbers() -> None:
    assert published("theta0", 0.5, 1) == 47.2
    assert published("theta1", 0.3, 2) == 98.8
    assert published("theta1", 0.8, 1) is None
    assert published("explicit-free", 0.5, 1) is None


def test_columns_of_the_table() -> None:
    found = columns.configs(False, None, 2)
    assert len(found) == 2 * len(columns.COLUMNS)
    assert [config.column for config in columns.configs(False, [0.5], 1)] == ["theta0.5", "implicit-free-0.5"]
    extra = columns.configs(False, [0.9], 1)
    assert [(config.column, config.theta, config.low) for config in extra] == [("theta0.9", 0.9, -3.0)]
    (hardened,) = columns.configs(False, None, 1, columns="implicit-tuned-0.5-noise")
    assert (hardened.theta, hardened.training, hardened.noise) == (0.5, "noise", 0.3)
    chosen = columns.configs(True, None, 1, columns="explicit-1lip,theta1", held_out="validation")
    assert [(config.column, config.low, config.held_out) for config in chosen] == [
        ("explicit-1lip", -1.0, "validation"),
        ("theta1", -3.0, "validation"),
    ]


def test_tuned_columns() -> None:
    found = {config.column: config for config in columns.configs(False, None, 1, columns="tuned")}
    assert list(found) == list(columns.TUNED)
    assert not set(found) & set(columns.COLUMNS)
    assert all(config.epochs == 100 and config.weight_decay > 0 and config.alpha_div == 0 for config in found.values())
    for config in found.values():
        assert (config.theta == 0) == config.column.startswith("explicit")
        config.build()
    gradient = found["implicit-gradient"]
    assert (gradient.theta, gradient.step_size, gradient.stem_gain, gradient.normalization) == (1, 3, 0.1, "gradient")
    mixed = columns.configs(False, None, 1, columns="theta1,tuned,implicit-tuned")
    assert [config.column for config in mixed] == ["theta1", *columns.TUNED]


def test_columns_stand_with_their_family() -> None:
    names = ["own", "implicit-tuned-0.5-noise", "implicit-smooth", "explicit-tuned", "theta0.9", "theta1", "theta0.5"]
    shown = ["theta0.5", "theta1", "theta0.9", "explicit-tuned", "implicit-smooth", "implicit-tuned-0.5-noise", "own"]
    assert sorted(names, key=columns.place) == shown
    assert [columns.family(name) for name in shown] == [0, 0, 0, 1, 2, 3, 4]


def test_smooth_columns() -> None:
    found = {config.column: config for config in columns.configs(False, None, 1, columns="smooth")}
    assert list(found) == list(columns.SMOOTH)
    assert all(config.sensitivity > 0 and config.training == "clean" for config in found.values())
    # The same recipe for each theta.
    same = {
        dataclasses.replace(found[name], column="", theta=0.5, graph_steps=0)
        for name in ("explicit-smooth", "implicit-smooth-0.5", "implicit-smooth")
    }
    assert len(same) == 1
    for config in found.values():
        assert (config.theta == 0) == config.column.startswith("explicit")
        assert config.build()(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_the_sensitivity_is_part_of_the_loss_and_of_its_gradient(theta: float) -> None:
    """By hand: the derivative of the logits in the direction that was drawn."""
    config = MnistConfig(**{**SMALL, "theta": theta}, column="small", seed=0, sensitivity=0.7, rtol=1e-9)
    network = Mnist(config).double()
    images, labels = torch.rand(5, 1, 8, 8, dtype=torch.float64), torch.arange(5) % 4
    torch.manual_seed(shifted(1))
    terms = network.terms((images, labels))
    torch.manual_seed(shifted(1))
    v, step = torch.randn_like(images), 1e-6
    with torch.no_grad():
        tangents = (network.model(images + step * v) - network.model(images - step * v)) / (2 * step)
    assert terms["penalty"].item() == pytest.approx(0.7 * tangents.var(1, correction=0).mean().item(), rel=1e-5)
    assert terms["total"].item() == pytest.approx((terms["loss"] + terms["penalty"]).item(), rel=1e-12)
    gradients = torch.autograd.grad(terms["penalty"], list(network.model.parameters()), allow_unused=True)
    assert sum(float(g.abs().sum()) for g in gradients if g is not None) > 0


def test_two_penalties_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sensitivity=0.1 takes the place .* got alpha_div=0.01 and alpha_jac=0.0"):
        MnistConfig(theta=0.5, column="both", seed=0, sensitivity=0.1)


def test_what_is_wrong_with_the_data_is_told_before_any_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"spoilt")
    with pytest.raises(SystemExit) as stopped:
        main([*TRAIN, "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert re.match(r"resolvent: .*train-images-idx3-ubyte.gz does not begin like.*\n$", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_columns_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(json.dumps({"a": {"base": "implicit-free", "learning_rate": 0.003}, "b": {"theta": 0.25}}))
    a, b = columns.configs(False, None, 1, columns=str(path))
    assert (a.name, a.theta, a.normalization, a.learning_rate) == ("a-seed0", 1.0, "free", 0.003)
    assert (b.name, b.theta, b.normalization) == ("b-seed0", 0.25, "bounded")
    for content, told in (
        ("{", "cannot read"),
        ("[1]", "object of columns"),
        ('{"a": {"lr": 1}}', "lr"),
        ('{"a": {"base": "no"}}', "'no'"),
        ('{"a": {"schedule": "cosine"}}', "'cosine'"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=told):
            columns.configs(False, None, 1, columns=str(path))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training": "loud"}, "'loud'"),
        ({"solver": "guess"}, "'guess'"),
        ({"held_out": "train"}, "'train'"),
        ({"normalization": "batch", "theta": 0.0, "alpha_div": 0.1}, "couples samples"),
        ({"normalization": "batch", "theta": 0.0, "alpha_div": 0.0, "sensitivity": 0.1}, "couples samples"),
        ({"attack_norm": "l1", "training": "adversarial"}, "'l1'"),
    ],
)
def test_refused_settings(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        _ = MnistConfig(**({"column": "x", "theta": 0.5, "seed": 0} | changes)).budget


def arrays(folder: Path) -> Path:
    import numpy as np

    data = bars(80)
    np.savez(folder / "bars.npz", images=data.images[:, 0].numpy(), labels=data.labels.numpy())
    return folder / "bars.npz"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        columns,
        "_QUICK",
        {key: SMALL[key] for key in ("architecture", "layers", "channels")} | {"epochs": 1, "limit": 8, "draws": 1},
    )


@pytest.mark.usefixtures("short")
def test_images_of_one_s_own_from_the_command_to_attacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = [*TRAIN, "--quick", "--columns", "explicit-free,theta1", "--data-dir", str(arrays(tmp_path))]
    options += ["--jobs", "1", "--out", str(out), "--attack-images", "2"]
    main([*options, "--attacks", "quick"])
    runs = collect(out).runs
    assert [run.config.column for run in runs] == ["explicit-free", "theta1"]  # type: ignore[attr-defined]
    assert all((run.config.data, run.config.num_classes, run.config.height) == ("own", 4, 8) for run in runs)  # type: ignore[attr-defined]
    found = tables(runs)
    assert any("worst of all attacks" in title for title in found)
    (each,) = (rows for title, rows in found.items() if title.startswith("Accuracy under each attack"))
    assert each[0][1:-1] == [f"{b} {a}" for b in ("linf 0.05", "l2 0.5") for a in ("fgsm", "pgd", "autoattack")]
    assert all(len(rows) == 3 for rows in found.values())
    assert not any("paper" in cell for rows in found.values() for row in rows for cell in row)
    assert capsys.readouterr().out.count("attacking") == 1
    main([*options, "--attacks", "quick"])  # nothing is done twice
    assert "attacking" not in capsys.readouterr().out
    for name in ("digits", "own"):
        changed = tuple(dataclasses.replace(run, config=dataclasses.replace(run.config, data=name)) for run in runs)
        ((experiment, part, outcomes),) = judged(Results(changed))
        assert len(part.runs) == 2
        assert len(outcomes) == (0 if name == "own" else len(experiment.claims)), "claims are about MNIST"


def test_attacks_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'brutal'"):
        attacks.attack(tmp_path, "brutal", 1)
    monkeypatch.setattr(attacks, "available", lambda: False)
    with pytest.raises(ValueError, match="pyautoattack"):
        attacks.attack(tmp_path, "quick", 1)


def test_the_machine_is_told_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.device() == torch.device("cpu")
    monkeypatch.setenv(machine.DEVICE, "tpu")
    with pytest.raises(ValueError, match="'tpu'"):
        machine.device()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        machine.use("cuda")
    machine.use("auto")
    assert machine.device() == torch.device("cpu")


@pytest.mark.slow
def test_training_needs_no_library_of_figures_or_options() -> None:
    """matplotlib and scipy are imported by Lightning where they are found, so that ours are looked through instead."""
    forbidden = ("jsonargparse", "mlxtend", "pyautoattack", "pooch")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({forbidden!r}))
from resolvent_lab.experiments.reproduce import train
ours = [module for name, module in list(sys.modules.items()) if name.startswith("resolvent")]
values = [value for module in ours for value in vars(module).values()]
origins = {{str(getattr(value, "__module__", value)).split(".")[0] for value in values}}
assert not origins & {{"matplotlib", "scipy"}}, origins
assert "resolvent.plotting" not in sys.modules
print(train.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == "train\n", done.stderr
