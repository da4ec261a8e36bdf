"""Runs of experiments that were killed go on, and end bit by bit as if they had not been."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.experiments.small_network import SMALL
from resolvent_lab import strict_json
from resolvent_lab.command import Interrupted
from resolvent_lab.experiments import train
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.network import Mnist
from resolvent_lab.experiments.network import Batches
from resolvent_lab.experiments.regression import model as regression
from resolvent_lab.experiments.run import is_finished
from resolvent_lab.experiments.segments import segments_of
from resolvent_lab.experiments.stiff import model as stiff
from resolvent_lab.experiments.train import fitted
from resolvent_lab.experiments.unfinished import Unfinished
from resolvent_lab.experiments.van_der_pol import model as van_der_pol
from resolvent_lab.fitting.weights import read_weights
from resolvent_lab.images import ImageModule, Images, Split
from seeding import shifted

REGRESSION = regression.RegressionConfig(theta=0.5, alpha_div=0.5, seed=0, epochs=4)


def with_probes() -> Any:
    return regression.data(REGRESSION), regression.Regression(REGRESSION)


def with_shuffled_batches_and_norms() -> Any:
    config = stiff.StiffConfig(theta=1.0, points=10, seed=0, epochs=3)
    return Batches(stiff.data(config).batches[:3], shuffle=True), stiff.Stiff(config)


def with_least_squares() -> Any:
    config = van_der_pol.VanDerPolConfig(
        seed=0, method="Radau IIA 5", mu=10.0, epochs=4, stages=2, stage_epochs=2, width=2
    )
    times = torch.tensor([0.0, 0.01, 0.1], dtype=torch.float64)[:, None].expand(-1, 2)
    states = van_der_pol.starts(6).reshape(3, 2, 2)
    return Batches([segments_of(times, states)]), van_der_pol.VanDerPol(config)


def with_noisy_images() -> Any:
    data = Images(torch.rand(60, 1, 8, 8), torch.arange(60) % 4)
    changes = {"training": "noise", "schedule": "onecycle", "epochs": 3, "normalization": "bounded"}
    config = MnistConfig(column="x", seed=0, **(SMALL | changes))
    return ImageModule(Split(data, data, data), 20, shifted(0)), Mnist(config)


def trained(make: Callable[[], Any], folder: Path, stop: int | None = None) -> Any:
    """A network after its training in a folder, which ends before an epoch if asked."""

    def on_epoch(epoch: int) -> None:
        if epoch == stop:
            raise Interrupted(15)

    torch.manual_seed(shifted(1))
    data, network = make()
    fitted(network, data, Unfinished(folder), on_epoch)
    return network


@pytest.mark.slow
@pytest.mark.parametrize("make", [with_probes, with_shuffled_batches_and_norms, with_least_squares, with_noisy_images])
def test_a_stopped_training_goes_on(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    # The learning rate falls in each epoch.
    settings = {"factor": 0.5, "patience": 0, "threshold": 10.0}
    monkeypatch.setattr(regression.Regression, "plateau", lambda self: settings)
    whole = trained(make, tmp_path / "whole")
    for stop in (2, 3):
        with pytest.raises(Interrupted):
            trained(make, tmp_path / "stopped", stop)
    torch.rand(7)
    assert Unfinished(tmp_path / "stopped").last is not None
    goes_on = trained(make, tmp_path / "stopped")
    assert goes_on.curves == whole.curves
    for name, value in whole.state_dict().items():
        assert torch.equal(value, goes_on.state_dict()[name]), name


KILLED = """
    import os, random, signal, sys, time, warnings
    from pathlib import Path
    import torch
    from resolvent_lab.experiments import train
    from resolvent_lab.experiments.catalogue import experiments
    from resolvent_lab.experiments.sweep import sweep
    from resolvent_lab.experiments.van_der_pol import model

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train.CHECKPOINT_SECONDS = 0.0
    # What takes long, and has nothing to do with the training.
    model.TRAJECTORIES, model.POINTS = 1, 4
    model.VanDerPol.measure = lambda self, batches: {"loss": self.curves["loss"][-1]}
    seed, kills, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    named = experiments()
    tasks = [
        ("regression", named["regression"].config(theta=0.5, alpha_div=0.5, seed=0, epochs=40)),
        ("regression", named["regression"].config(theta=0.0, alpha_div=0.0, seed=0, epochs=40)),
        ("van-der-pol", named["van-der-pol"].config(
            seed=0, method="Radau IIA 5", mu=10.0, epochs=6, stages=3, stage_epochs=2, width=2)),
    ]

    def child(out):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                sweep(tasks, folder / out, jobs=1)
                code = 0
            finally:
                os._exit(code)
        return pid

    began = time.monotonic()
    assert os.waitpid(child("whole"), 0)[1] == 0
    duration = time.monotonic() - began
    moments = random.Random(seed)
    for n in range(kills):
        pid = child("killed")
        if n % 2:  # at any moment; otherwise soon after a checkpoint
            time.sleep(moments.uniform(0, duration / 2))
        while n % 2 == 0 and not list((folder / "killed").rglob("last.ckpt")):
            if os.waitpid(pid, os.WNOHANG)[0]:
                sys.exit(0)  # nothing is left to kill
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print("killed with", sorted(path.parent.name for path in (folder / "killed").rglob("last.ckpt")), flush=True)
    assert os.waitpid(child("killed"), 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_killed_sweep_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Real processes are killed at random moments; the last one finishes the sweep."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(shifted(0)), "6", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "killed with ['.unfinished-" in done.stdout, "some were killed in the middle of a run"
    folders = sorted((tmp_path / "whole" / "runs").glob("*/[!.]*"))
    assert len(folders) == 3
    for one in folders:
        other = tmp_path / "killed" / one.relative_to(tmp_path / "whole")
        assert (one / "curves.json").read_bytes() == (other / "curves.json").read_bytes()
        weights = [read_weights(folder / "weights.safetensors") for folder in (one, other)]
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
        outcomes = [strict_json.load(folder / "metrics.json") for folder in (one, other)]
        assert outcomes[0]["metrics"] == outcomes[1]["metrics"]
    assert not list((tmp_path / "killed" / "runs").glob("*/.*")), "nothing is left of what was unfinished"


def test_what_cannot_be_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged checkpoint is not used; that of other settings is neither used nor lost."""
    last = tmp_path / "runs" / "regression" / f".unfinished-{REGRESSION.name}" / "last.ckpt"
    Unfinished(last.parent.with_name(REGRESSION.name)).begin(
        {"experiment": "regression", "config": {**vars(REGRESSION), "epochs": 9}}
    )
    last.write_bytes(b"cut")
    with pytest.raises(ValueError, match=r"holds a run with other settings .*'epochs': \(9, 4\)"):
        is_finished("regression", REGRESSION, tmp_path)
    assert last.exists()
    (last.parent / "config.json").write_text("{")
    assert not is_finished("regression", REGRESSION, tmp_path)
    assert "The run begins anew." in capsys.readouterr().out
    assert not last.exists()
    last.parent.mkdir()
    last.write_bytes(b"cut")
    train.train("regression", REGRESSION, tmp_path)
    assert f"the checkpoint {last} is damaged: " in capsys.readouterr().out
    assert is_finished("regression", REGRESSION, tmp_path)
