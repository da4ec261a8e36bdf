"""Real processes of the command line that are interrupted, terminated and killed, and find damaged files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

PATIENCE = 300.0
"""Seconds for what takes two on an idle machine."""


@contextmanager
def training(out: Path, jobs: int) -> Iterator[subprocess.Popen[str]]:
    """`resolvent reproduce` in a session of its own, all of which is killed at the end."""
    options = ["regression", "--quick", "--theta", "0", "--seeds", "9", "--jobs", str(jobs), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "resolvent_lab", "reproduce", "--train-only", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _kill_session(process.pid)
    until(lambda: not session(process.pid))


def _kill_session(leader: int) -> None:
    for pid in session(leader):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rsplit(")", 1)[1].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


def workers(leader: int) -> list[int]:
    """The processes of a session that train."""
    found = []
    for pid in session(leader):
        try:
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def begin(process: subprocess.Popen[str], jobs: int, moment: str) -> None:
    """Waits until runs "start", or until the first run is "finished"."""
    assert process.stdout is not None
    assert "0 of 27 runs are finished already" in process.stdout.readline()
    if jobs > 1:
        until(lambda: len(workers(process.pid)) == jobs)
    if moment == "finished":
        assert process.stdout.readline().startswith("1 of 27 runs finished, ")


def complete(out: Path) -> bool:
    """Whether all runs that are there are finished; a killed process may leave a draft."""
    folders = (out / "runs").glob("regression/[!.]*")
    return all(len(list(folder.iterdir())) == 4 for folder in folders)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "jobs", "moment"),
    [
        pytest.param(signal.SIGINT, 1, "start", id="ctrl-c with one job"),
        pytest.param(signal.SIGINT, 2, "finished", id="ctrl-c with two jobs"),
        pytest.param(signal.SIGTERM, 1, "finished", id="sigterm with one job"),
        pytest.param(signal.SIGTERM, 2, "start", id="sigterm with two jobs"),
    ],
)
def test_a_signal_ends_all_processes_and_says_so(
    tmp_path: Path, number: signal.Signals, jobs: int, moment: str
) -> None:
    with training(tmp_path, jobs) as process:
        begin(process, jobs, moment)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does: workers get it, too
        else:
            process.send_signal(number)
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 128 + number
        told = f"interrupted; finished runs are in {tmp_path}; start the same command again to go on"
        assert error == f"resolvent: {told}\n"
        until(lambda: not session(process.pid))
    assert complete(tmp_path)


@pytest.mark.parametrize("moment", ["start", "finished"])
def test_workers_die_with_their_parent(tmp_path: Path, moment: str) -> None:
    with training(tmp_path, 2) as process:
        begin(process, 2, moment)
        process.kill()
        process.wait(PATIENCE)
        until(lambda: not session(process.pid))


def test_a_damaged_run_is_repeated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "resolvent_lab", "reproduce", "stiff", "--train-only", "--quick"]
    command += ["--theta", "0", "--jobs", "1", "--out", str(tmp_path)]

    def run() -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "0 of 1 runs are finished already" in run()
    (folder,) = (tmp_path / "runs" / "stiff").iterdir()
    (folder / "weights.safetensors").write_bytes(b"cut")
    told = run()
    assert f"{folder} is damaged: " in told
    assert "0 of 1 runs are finished already" in told
    assert "1 of 1 runs are finished already" in run()
