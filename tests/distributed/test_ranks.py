"""Several processes: the results of one, and errors that end all of them."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import resolvent as rs
from ranks import data, layers, train
from resolvent.errors import ResolventError

PROGRAM = Path(__file__).parents[1] / "ranks.py"
PATIENCE = 240.0
"""Seconds for all of a run. The processes would wait for each other for 300 s."""
SOON = 30.0
"""Seconds between the ends of two processes, on a machine that is busy with other tests."""


def started(task: str, folder: Path, rank: int, **more: str) -> subprocess.Popen[str]:
    settings = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), task, str(folder)],
        env=settings | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, float]]:
    """The exit code, the output and the time of the end of each process."""
    ends: dict[int, float] = {}
    limit = time.monotonic() + PATIENCE
    try:
        while len(ends) < len(processes) and time.monotonic() < limit:
            for rank, process in enumerate(processes):
                if rank not in ends and process.poll() is not None:
                    ends[rank] = time.monotonic()
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    outputs = [process.communicate()[0] for process in processes]
    assert len(ends) == len(processes), f"a process did not end:\n{outputs}"
    return [(process.returncode, outputs[rank], ends[rank]) for rank, process in enumerate(processes)]


def run(task: str, folder: Path, **more: str) -> list[tuple[int, str, float]]:
    return ended([started(task, folder, rank, **more) for rank in range(2)])


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Started by torchrun: losses, gradients, weights and spectral-norm buffers are those of the joined batch."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(PROGRAM), "equal", str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for name, layer in layers().items():
        alone = train(layer.double(), data().double())
        mine: list[dict[str, Any]] = [results[name] for results in ranks]
        close = {"rtol": 1e-6, "atol": 1e-9}
        assert_close((mine[0]["losses"] + mine[1]["losses"]) / 2, alone["losses"], **close)
        for results in mine:
            assert_close(results["gradients"], alone["gradients"], **close)
            assert_close(results["state"], alone["state"], **close)
        # Buffers, such as the vectors of the power iteration, do not drift apart by a single bit.
        assert all(torch.equal(mine[0]["state"][key], mine[1]["state"][key]) for key in alone["state"])
    assert any("parametrizations" in key for key in layers()["normalised"].state_dict())


@pytest.mark.slow
def test_sharded_blocks_train_like_whole_ones(tmp_path: Path) -> None:
    """fully_shard around blocks; around the field of one it is refused."""
    ends = run("sharded", tmp_path)
    assert [code for code, _, _ in ends] == [0, 0], ends
    results = torch.load(tmp_path / "rank0.pt")
    for name, layer in layers().items():
        if name not in results:
            continue
        alone = train(layer.double(), data().double())
        close = {"rtol": 1e-6, "atol": 1e-9}
        assert_close(results[name]["gradients"], alone["gradients"], **close)
        assert_close(dict(results[name]["state"]), dict(alone["state"]), **close)
    for name in ("store", "equilibrium"):
        assert "Apply fully_shard to the block" in (tmp_path / f"refused {name} 0").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("forward", "The solve of w = b + tau F(w)"),
        ("backward", "The backward solve A^T u = g"),
        ("infinite_loss", "the loss is not finite"),
        ("infinite_input", "must be finite"),
    ],
)
def test_a_failure_of_one_ends_all(tmp_path: Path, task: str, message: str) -> None:
    first, second = run(task, tmp_path)
    for code, output, _ in (first, second):
        assert code not in (0, -9), output
        assert message in output
    assert "Process 1 failed" in first[1]
    assert "Process 1 failed" not in second[1]
    assert abs(first[2] - second[2]) < SOON
    assert not list(tmp_path.glob("went on*"))


@pytest.mark.slow
def test_lightning_ends_all(tmp_path: Path) -> None:
    first, second = run("lightning", tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), NODE_RANK="0")
    for code, output, _ in (first, second):
        assert code not in (0, -9), output
        assert "did not converge" in output
    assert "Process 1 failed" in first[1]
    assert abs(first[2] - second[2]) < SOON
    assert not list(tmp_path.glob("went on*"))


def free_port() -> int:
    import socket

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@pytest.mark.slow
def test_a_process_that_masks_keeps_in_step(tmp_path: Path) -> None:
    assert [code for code, _, _ in run("mask", tmp_path)] == [0, 0]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert (first["failed"], second["failed"]) == (0, 2)
    assert torch.equal(first["state"]["field.module.scale"], second["state"]["field.module.scale"])
    assert bool(first["state"]["field.module.scale"].isfinite().all())


def test_in_one_process_solves_raise_as_ever() -> None:
    block = rs.ThetaBlock(lambda t, y: y.square() + 1, 1.0, 1, 1.0)
    before = block.options
    with rs.blocks.FailTogether(block):
        assert block.options is before
    with pytest.raises(rs.ConvergenceError), rs.blocks.FailTogether(block):
        block(torch.full((2, 2), 50.0))


def test_in_one_process_a_loss_that_is_not_finite_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    ranks = rs.blocks.FailTogether(model)
    with pytest.raises(ResolventError, match="the loss is not finite"), ranks:
        ranks.check(torch.tensor(float("inf")))
    with ranks:
        ranks.check(torch.tensor(1.0))
        with pytest.raises(ValueError, match="open already"):
            ranks.__enter__()


def test_the_model_must_be_a_module() -> None:
    with pytest.raises(ValueError, match=r"must be an nn\.Module"):
        rs.blocks.FailTogether(torch.relu)  # type: ignore[arg-type]
