"""`resolvent train` and what is done with a run: every model on every kind of data, and every wrong setting."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.training.own_data import QUIET, arrays, decays, pictures, plane, rings, table_settings
from resolvent_lab import cli
from resolvent_lab.lock import FolderInUseError, exclusive
from resolvent_lab.training import configuration
from resolvent_lab.training.evaluate import evaluate
from resolvent_lab.training.fit import train
from resolvent_lab.training.predict import predict
from resolvent_lab.training.trained import load


@pytest.fixture(autouse=True)
def _single_precision() -> None:
    torch.set_default_dtype(torch.float32)


def test_a_run_from_training_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = table_settings(
        tmp_path, "--trainer.max_epochs", "8", "--optimizer.lr", "0.05", "--penalties.jacobian", "0.01"
    )
    metrics = train(settings)
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("config.yaml", "facts.json", "metrics.json", "history.csv"),
        *("checkpoints", "best.safetensors", "last.safetensors"),
    }
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    history = list(csv.DictReader((run / "history.csv").read_text().splitlines()))
    assert [row["epoch"] for row in history] == [str(epoch) for epoch in range(8)]
    assert {"train_loss", "train_penalty", "val_loss", "val_accuracy", "lr"} < set(history[0])
    assert float(history[-1]["train_loss"]) < 0.7 * float(history[0]["train_loss"]), "it learns"
    assert metrics["val_loss"] == min(float(row["val_loss"]) for row in history), "the best epoch"

    measured = evaluate(run, "train")
    assert measured["samples"] == 42
    assert measured["accuracy"] > 0.8
    assert measured["iterations"] >= 1
    assert json.loads((run / "evaluation-train.json").read_text()) == measured

    (tmp_path / "new.csv").write_text("x2,x1\n0,0\n3,3\n")
    assert predict(run, tmp_path / "new.csv", tmp_path / "p.csv") == 2
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [row["class"] for row in rows] == ["inner", "outer"]
    assert predict(run, tmp_path / "new.csv", tmp_path / "p.npz") == 2
    probabilities = np.load(tmp_path / "p.npz")["probabilities"]
    assert float(rows[0]["probability_inner"]) == pytest.approx(probabilities[0, 0])

    train(settings)
    assert "is finished already" in capsys.readouterr().out
    cli.main(["diagnose", str(run), "--samples", "4"])
    assert "max |R(z)|" in capsys.readouterr().out
    found = {path.name for path in (run / "diagnosis").iterdir()}
    assert {"diagnosis.txt", "diagnosis.json", "iterations.png", "spectrum-layer-2.png"} <= found


DATA = {
    "classes": lambda folder: ("Table", "--data.file", rings(folder), "--data.target", "ring"),
    "numbers": lambda folder: (
        "Table",
        "--data.file",
        plane(folder),
        "--data.target",
        "sum",
        "--data.task",
        "regression",
    ),
    "arrays": lambda folder: ("Table", "--data.file", arrays(folder), "--data.target", "targets"),
    "series": lambda folder: ("Series", "--data.file", decays(folder)),
    "pictures": lambda folder: ("Pictures", "--data.path", pictures(folder)),
    "digits": lambda folder: ("Pictures", "--data.source", "digits", "--data.train", "50"),
    "sine": lambda folder: ("Sine", "--data.count", "20"),
    "stiff": lambda folder: ("StiffSystem", "--data.count", "5"),
    "predator and prey": lambda folder: ("PredatorPrey", "--data.count", "5"),
}
MODELS = {
    "ThetaMLP": ("--model.layers", "2", "--model.dim", "4", "--model.width", "5"),
    "NeuralODE": ("--model.dim", "4", "--model.width", "5"),
    "EquilibriumModel": ("--model.width", "5"),
    "ImplicitResNet": ("--model.channels", "2", "--model.layers", "1"),
}
PAIRS = [
    *(("ThetaMLP", data) for data in DATA),
    *(("NeuralODE", data) for data in ("classes", "numbers", "arrays", "series", "pictures", "predator and prey")),
    *(("EquilibriumModel", data) for data in ("classes", "numbers", "arrays", "pictures", "sine")),
    *(("ImplicitResNet", data) for data in ("arrays", "pictures", "digits")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data"),
    PAIRS,
)
def test_every_model_on_every_data(tmp_path: Path, model: str, data: str) -> None:
    options = ["--data", *map(str, DATA[data](tmp_path)), "--model", model, *MODELS[model], *QUIET]
    run = tmp_path / "run"
    metrics = train(configuration.parse(*options, "--trainer.max_epochs", "1", "--out", str(run)))
    assert np.isfinite(metrics["val_loss"])
    trained = load(run, "last")
    part = trained.samples("test", None)
    measured = evaluate(run, weights="last")
    assert measured["samples"] == part.size
    if trained.facts.task != "classification":
        outputs = trained.outputs(part)
        truth = part.targets
        rmse = (outputs - truth).square().flatten(0, -2).mean(0).sqrt()
        assert list(measured["rmse"].values()) == pytest.approx(rmse.tolist(), rel=1e-5)
    cli.main(["diagnose", str(run), "--samples", "3", "--weights", "last"])
    assert list((run / "diagnosis").glob("spectrum-*.png"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.theta", "2"], "theta must lie in [0, 1], got 2.0"),
        (["--model.thta", "1"], "ThetaMLP: Option 'thta' is not accepted"),
        (["--model", "Foo"], "model: there is no class Foo"),
        (["--model", "ImplicitResNet"], "takes images (channels, height, width), got inputs of shape (2,)"),
        (["--model", "EquilibriumModel", "--model.dropout", "2"], "dropout must lie in [0, 1), got 2.0"),
        (["--data.file", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--data.target", "rig"], "has no column 'rig'; it has x1, x2, ring"),
        (["--data.batch_size", "0"], "batch_size must be 1 or more, got 0"),
        (["--data.validation", "2"], "validation must lie in (0, 1)"),
        (["--trainer.max_epoch", "3"], "unrecognized arguments: --trainer.max_epoch"),
        (["--trainer.max_epochs", "x"], "trainer.max_epochs: expected int, got x"),
        (["--trainer.precision", "7"], "trainer.precision: expected"),
        (["--trainer.accelerator", "tpu"], "trainer: "),
        (["--trainer.logger", "Foo"], "trainer.logger: there is no class Foo"),
        (["--trainer.callbacks", "Foo"], "there is no class Foo"),
        (["--optimizer", "SDG"], "optimizer: there is no class SDG"),
        (["--optimizer.lr", "-1"], "Invalid learning rate: -1.0"),
        (["--lr_scheduler", "StepLR"], "lr_scheduler: the following arguments are required: step_size"),
        (["--monitor", "loss"], "monitor must be val_loss or val_accuracy, got 'loss'"),
        (["--patience", "0"], "patience is a number of epochs"),
        (["--penalties.jacobian", "-1"], "jacobian must be 0 or more, got -1.0"),
        (["--seed", "-1"], "seed must be 0 or more"),
        (["--checkpoint_every", "0"], "checkpoint_every is a number of steps"),
        (["--out", "rings.csv"], "--out must be a folder, but rings.csv is a file"),
        (["--out", "/proc/nowhere"], "cannot write to --out /proc/nowhere"),
    ],
)
def test_wrong_settings_are_one_line_and_nothing_is_begun(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    rings(tmp_path)
    Path("c.yaml").write_text(
        "data: {class_path: Table, init_args: {file: rings.csv, target: ring}}\nmodel: ThetaMLP\n"
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "c.yaml", *arguments])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert words in error
    assert error.startswith("resolvent: ")
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "rings.csv"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["evaluate", "nowhere"], "nowhere is no folder of a run"),
        (["predict", "nowhere", "x.csv"], "nowhere is no folder of a run"),
        (["predict", "nowhere", "x.csv", "--to", "p.txt"], "--to must end in .csv or .npz, got p.txt"),
        (["diagnose", "nowhere", "--samples", "0"], "samples must be 1 or more, got 0"),
        (["evaluate", "nowhere", "--part", "tst"], "'tst'"),
    ],
)
def test_wrong_use_of_a_run(capsys: pytest.CaptureFixture[str], command: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(command)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_a_printed_configuration_is_read_again(tmp_path: Path) -> None:
    settings = table_settings(tmp_path, "--lr_scheduler", "StepLR", "--lr_scheduler.step_size", "2")
    file = tmp_path / "c.yaml"
    file.write_text(configuration.text(settings))
    assert configuration.text(configuration.parse(str(file))) == file.read_text()
    assert configuration.differences(configuration.parse(str(file), "--seed", "2"), settings) == ["seed"]


def test_the_folder_belongs_to_one_process(tmp_path: Path) -> None:
    settings = table_settings(tmp_path)
    with exclusive(tmp_path / "run"), pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()} on "):
        train(settings)
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.slow
def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    train(table_settings(tmp_path, "--trainer.max_epochs", "1"))
    with pytest.raises(ValueError, match="holds a run with another seed, model"):
        train(table_settings(tmp_path, "--seed", "2", "--model.theta", "0.25"))


@pytest.mark.slow
def test_early_stopping_and_own_callbacks(tmp_path: Path) -> None:
    settings = table_settings(
        tmp_path,
        *("--patience", "1", "--optimizer.lr", "1e-30", "--trainer.max_epochs", "9"),
        *("--trainer.callbacks+=LearningRateMonitor", "--trainer.logger", "CSVLogger"),
        *("--trainer.logger.save_dir", str(tmp_path / "logs"), "--trainer.gradient_clip_val", "0.5"),
    )
    assert train(settings)["epochs"] == 2, "the loss does not fall"
    (log,) = (tmp_path / "logs").rglob("metrics.csv")
    columns = log.read_text().splitlines()[0].split(",")
    assert {"loss", "iterations", "lr-Adam", "solver/network.layers.2/forward/steps", "val_loss"} <= set(columns)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(configuration.text(table_settings(tmp_path, "--optimizer", "SGD", "--optimizer.lr", "1e30")))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", str(file), "--model.theta", "0"])
    assert stopped.value.code == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("resolvent: the loss is ")
