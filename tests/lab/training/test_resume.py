"""A run that was stopped goes on, and ends bit by bit as one that was not."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.training.own_data import QUIET, table_settings
from resolvent_lab import cli
from resolvent_lab.fitting.checkpoints import read_checkpoint
from resolvent_lab.training import configuration, fit
from resolvent_lab.training.fit import SeedEachBatch, train
from seeding import shifted


class Stopped(BaseException):
    """As a signal would."""


def stopped(settings: Any, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains until some batches are done."""
    seen = []

    class Stopping(SeedEachBatch):
        def on_train_batch_start(self, *arguments: Any) -> None:
            if len(seen) == batches:
                raise Stopped
            seen.append(0)
            super().on_train_batch_start(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(fit, "SeedEachBatch", Stopping)
        with pytest.raises(Stopped):
            train(settings)


def same(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two trees of tensors differ."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    if isinstance(a, dict):
        pairs = [(key, a.get(key), b.get(key)) for key in {**a, **b}]
        return [place for key, x, y in pairs for place in same(x, y, f"{path}/{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [place for n, (x, y) in enumerate(zip(a, b, strict=True)) for place in same(x, y, f"{path}/{n}")]
    return [] if a == b else [path]


EXACT = ("state_dict", "optimizer_states", "lr_schedulers", "resolvent", "epoch", "global_step")


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("best.safetensors", "last.safetensors", "history.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    for name in ("last.ckpt", "best.ckpt"):
        a, b = (read_checkpoint(run / "checkpoints" / name) for run in (one, other))
        assert not same({key: a[key] for key in EXACT}, {key: b[key] for key in EXACT})
        steps = [c["loops"]["fit_loop"]["epoch_loop.state_dict"] for c in (a, b)]
        assert steps[0] == steps[1], "the loggers go on where they were"


DROPOUT = ("--model.dropout", "0.2", "--penalties.jacobian", "0.1")
CASES = {
    "dropout, probes and a schedule of epochs": (*DROPOUT, "--lr_scheduler", "StepLR", "--lr_scheduler.step_size", "1"),
    "plateau": (
        *("--lr_scheduler", "lightning.pytorch.cli.ReduceLROnPlateau", "--lr_scheduler.monitor", "val_loss"),
        *("--lr_scheduler.patience", "0", "--lr_scheduler.threshold", "10"),
    ),
    "steps": (
        *("--lr_scheduler", "OneCycleLR", "--lr_scheduler.max_lr", "0.1", "--lr_scheduler.total_steps", "9"),
        *("--lr_interval", "step", "--checkpoint_every", "1"),
    ),
    "accumulation": ("--trainer.accumulate_grad_batches", "2", "--checkpoint_every", "1", *DROPOUT),
    "warm starts": (
        *("--model", "EquilibriumModel", "--model.width", "6", "--model.warm", "true", "--model.dropout", "0.1"),
        *("--checkpoint_every", "2", "--penalties.jacobian", "0.1"),
    ),
    "spectral norms": ("--model.bound", "0.9", "--checkpoint_every", "2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_goes_on(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs of three batches, stopped twice."""
    torch.set_default_dtype(torch.float32)

    def settings(out: str) -> Any:
        return table_settings(tmp_path, *CASES[case], "--trainer.max_epochs", "3", "--out", str(tmp_path / out))

    train(settings("whole"))
    for first, second in ((4, 1), (2, 6)):
        name = f"stopped {first} {second}"
        stopped(settings(name), first, monkeypatch)
        stopped(settings(name), second, monkeypatch)
        train(settings(name))
        assert_same_run(tmp_path / "whole", tmp_path / name)


@pytest.mark.slow
def test_a_finished_run_may_be_longer(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    train(table_settings(tmp_path, *DROPOUT, "--trainer.max_epochs", "4", "--out", str(tmp_path / "whole")))
    for epochs in ("2", "4"):
        train(table_settings(tmp_path, *DROPOUT, "--trainer.max_epochs", epochs, "--out", str(tmp_path / "longer")))
    assert_same_run(tmp_path / "whole", tmp_path / "longer")


FORKS = """
    import os, signal, sys, time, warnings
    import numpy as np, torch
    from pathlib import Path
    from resolvent_lab.command import CommandError
    from resolvent_lab.training import configuration
    from resolvent_lab.training.fit import train

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seed, kills, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    arguments = sys.argv[4:]

    def child(out):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                train(configuration.parse(*arguments, "--out", str(folder / out)))
                code = 0
            finally:
                os._exit(code)
        return pid

    # What is imported here need not be imported by every child.
    import pandas, safetensors.torch, torch.profiler, zoneinfo
    assert configuration.instantiate(configuration.parse(*arguments)).data.facts

    began = time.monotonic()
    assert os.waitpid(child("whole"), 0)[1] == 0
    duration = time.monotonic() - began
    random, killed = np.random.default_rng(seed), 0
    for n in range(10 * kills):
        pid = child("killed")
        time.sleep(random.uniform(0, duration))
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            killed += 1
            print("killed", sorted(path.name for path in (folder / "killed").rglob("*.ckpt")), flush=True)
        elif killed < kills:  # finished: once more from the beginning
            (folder / "killed" / "metrics.json").unlink(missing_ok=True)
            (folder / "killed" / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
        if killed == kills:
            break
    assert killed == kills
    assert os.waitpid(child("killed"), 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Real processes are killed at 20 random moments; the last one finishes the run."""
    table_settings(tmp_path)  # makes the data
    arguments = [
        *("--data", "Table", "--data.file", str(tmp_path / "rings.csv"), "--data.target", "ring"),
        *("--data.batch_size", "8", "--model", "EquilibriumModel", "--model.width", "6", "--model.warm", "true"),
        *("--model.dropout", "0.1", "--penalties.jacobian", "0.1", "--checkpoint_every", "2"),
        *("--lr_scheduler", "StepLR", "--lr_scheduler.step_size", "2", "--trainer.max_epochs", "12", *QUIET),
    ]
    command = [sys.executable, "-c", textwrap.dedent(FORKS), str(shifted(0)), "20", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed [") == 20
    assert "killed ['best.ckpt', 'last.ckpt']" in done.stdout, "some were killed in the middle of the run"
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob(".draft-*")), "what a killed process left is removed"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_signal_ends_a_run_and_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real process. While it runs, a second one is told who holds the folder."""
    file = tmp_path / "c.yaml"
    file.write_text(configuration.text(table_settings(tmp_path, "--trainer.max_epochs", "100000")))
    run = tmp_path / "run"
    command = [sys.executable, "-W", "ignore", "-m", "resolvent_lab", "train", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + 300
            while not (run / "checkpoints" / "last.ckpt").exists():
                assert time.monotonic() < end
                assert process.poll() is None
                time.sleep(0.1)
            with pytest.raises(SystemExit) as stopped:
                cli.main(["train", str(file)])
            assert stopped.value.code == 1
            assert f"{run} is in use by process {process.pid} on " in capsys.readouterr().err
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    told = f"interrupted; the run is in {run}; start the same command again to go on from its last checkpoint"
    assert error.splitlines()[-1] == f"resolvent: {told}"
    assert "Traceback" not in error
    assert read_checkpoint(run / "checkpoints" / "last.ckpt")["epoch"] >= 1
