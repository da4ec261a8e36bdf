"""What a sweep tells of its progress, and to whom its folder belongs."""

from pathlib import Path

import pytest

from resolvent_lab.experiments import progress
from resolvent_lab.experiments.lotka_volterra.model import LotkaVolterraConfig
from resolvent_lab.experiments.progress import Progress
from resolvent_lab.experiments.sweep import sweep
from resolvent_lab.lock import FolderInUseError, exclusive

TASKS = [("lotka-volterra", LotkaVolterraConfig(theta=0.5, seed=seed, epochs=100)) for seed in range(4)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by the test."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_that_is_left(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress(TASKS) as bars:
        bars.advance(TASKS[0], 50)  # it goes on: half of it had been done before
        clock[0] += 30
        bars.finish(TASKS[0])  # half a run in 30 seconds: three runs are left
        assert capsys.readouterr().out == "1 of 4 runs finished, about 03:00 left: lotka-volterra theta0.5-seed0\n"
        bars.advance(TASKS[1], 0)
        clock[0] += 90
        bars.finish(TASKS[1])  # one and a half runs in 120 seconds: two runs are left
    assert "2 of 4 runs finished, about 02:40 left" in capsys.readouterr().out


def test_each_run_is_shown_if_asked(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress(TASKS, verbose=True) as bars:
        for epoch in range(1, 101):
            clock[0] += 1
            bars.advance(TASKS[0], epoch)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[4] == "lotka-volterra theta0.5-seed0: epoch 50 of 100, about 05:50 left"


def test_a_folder_belongs_to_one_sweep(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(FolderInUseError, match="is in use by process"):
        sweep(TASKS, tmp_path, jobs=1)
