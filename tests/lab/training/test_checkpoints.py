"""Checkpoints and weights that are truncated, foreign or malicious, and disks that are full: one line, nothing lost."""

import errno
import io
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.training.own_data import table_settings
from resolvent_lab import atomic, cli
from resolvent_lab.command import CommandError
from resolvent_lab.fitting.checkpoints import SafeCheckpoints, read_checkpoint
from resolvent_lab.training import configuration
from resolvent_lab.training.evaluate import evaluate
from resolvent_lab.training.fit import train


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


GOOD = {"resolvent": {}, "state_dict": {"w": torch.arange(200, dtype=torch.float32)}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(lambda p: saved(GOOD)[:-100], "is damaged: ", id="truncated"),
        pytest.param(lambda p: saved(GOOD)[:20], "is damaged: ", id="only its beginning"),
        pytest.param(lambda p: b"", "is damaged: ", id="empty"),
        pytest.param(lambda p: b"junk that is no archive", "is damaged: ", id="junk"),
        pytest.param(
            lambda p: saved(GOOD).replace(np.float32(150).tobytes(), b"abcd"),
            "wrong checksum",
            id="changed",
        ),
        pytest.param(lambda p: saved({"state_dict": {}}), "is no checkpoint of resolvent", id="foreign"),
        pytest.param(lambda p: saved([1, 2]), "is no checkpoint of resolvent", id="a list"),
        pytest.param(lambda p: saved({**GOOD, "x": Malicious(p)}), "it could run code", id="malicious"),
        pytest.param(lambda p: pickle.dumps(Malicious(p)), "is damaged: ", id="a bare pickle"),
    ],
)
def test_no_other_file_is_read(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "last.ckpt"
    path.write_bytes(content(tmp_path / "it has run"))
    with pytest.raises(ValueError, match=r"last\.ckpt") as error:
        read_checkpoint(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "it has run").exists()


def test_a_good_checkpoint_is_read(tmp_path: Path) -> None:
    SafeCheckpoints().save_checkpoint(GOOD, tmp_path / "folder" / "last.ckpt")
    assert torch.equal(read_checkpoint(tmp_path / "folder" / "last.ckpt")["state_dict"]["w"], GOOD["state_dict"]["w"])
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["last.ckpt"]


def test_the_best_score_moves_with_the_folder(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    before, after = (ModelCheckpoint(tmp_path / name, "best", "val_loss") for name in ("before", "after"))
    best = str(tmp_path / "before" / "best.ckpt")
    before.best_model_path = before.kth_best_model_path = best
    before.best_model_score = before.kth_value = torch.tensor(0.25)
    before.best_k_models = {best: torch.tensor(0.25)}
    checkpoint = {**GOOD, "callbacks": {before.state_key: before.state_dict()}}
    SafeCheckpoints().save_checkpoint(checkpoint, tmp_path / "after" / "last.ckpt")
    found = SafeCheckpoints().load_checkpoint(tmp_path / "after" / "last.ckpt")
    after.load_state_dict(found["callbacks"][after.state_key])
    assert after.best_model_score == 0.25
    assert list(after.best_k_models) == [str(tmp_path / "after" / "best.ckpt")] == [after.best_model_path]


@pytest.mark.parametrize("step", ["fsync", "replace", "fdopen"])
def test_a_failing_write_leaves_the_last_good_one(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    SafeCheckpoints().save_checkpoint(GOOD, path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullFile(io.FileIO):
        def write(self, data: Any) -> int:
            full()
            return 0

    with monkeypatch.context() as patch:
        patch.setattr(os, step, (lambda descriptor, mode: FullFile(descriptor, mode)) if step == "fdopen" else full)
        with pytest.raises(CommandError, match=r"cannot write the checkpoint .*last good one, .*, is still there"):
            SafeCheckpoints().save_checkpoint({**GOOD, "x": 1}, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_killed_write_leaves_a_draft_that_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".draft-last.ckpt-x").write_bytes(b"half")
    atomic.write(tmp_path / "last.ckpt", b"whole")
    atomic.remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.slow
def test_a_process_whose_disk_is_full(tmp_path: Path) -> None:
    """Files of this process may have 4 kB: the weights are larger, the settings are not."""
    file = tmp_path / "c.yaml"
    file.write_text(configuration.text(table_settings(tmp_path, "--model.width", "40")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "resolvent_lab", "train", str(file)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
        timeout=600,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("resolvent: cannot write the checkpoint ")
    assert "File too large. There is none yet." in done.stderr
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_what_is_wrong_with_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)
    settings = table_settings(tmp_path)
    file = tmp_path / "c.yaml"
    file.write_text(configuration.text(settings))
    train(settings)
    run = tmp_path / "run"
    good = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def refused(*command: object) -> str:
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(each) for each in command])
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    (run / "best.safetensors").write_bytes(good[run / "best.safetensors"][:50])
    assert "best.safetensors is damaged or no safetensors file" in refused("evaluate", run)
    from safetensors.torch import save

    (run / "best.safetensors").write_bytes(save({"w": torch.zeros(3)}))
    assert "are those of another network (missing: " in refused("evaluate", run)
    (run / "best.safetensors").unlink()
    assert evaluate(run)["samples"] == 12, "from best.ckpt"
    (run / "metrics.json").unlink()
    (run / "checkpoints" / "last.ckpt").write_bytes(b"cut")
    assert "last.ckpt is damaged" in refused("train", file)
    (run / "checkpoints" / "last.ckpt").write_bytes(saved({"resolvent": {}, "state_dict": {}}))
    assert "are those of another network" in refused("train", file)
    (run / "config.yaml").write_text("data: [")
    assert "config.yaml cannot be read" in refused("evaluate", run)
    (run / "config.yaml").write_bytes(good[run / "config.yaml"])
    (run / "facts.json").write_text("{}")
    assert "facts.json cannot be read" in refused("evaluate", run)
