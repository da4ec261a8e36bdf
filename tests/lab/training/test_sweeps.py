"""The examples of sweeps: failed runs are reported, the rest goes on, and a sweep can be started again."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from lab.training.own_data import rings

EXAMPLES = Path(__file__).parents[3] / "examples" / "sweeps"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "example",
    [
        pytest.param("sweep.py", marks=pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="submitit")),
        pytest.param("sweep_ray.py", marks=pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray")),
    ],
)
def test_a_sweep(tmp_path: Path, example: str) -> None:
    rings(tmp_path)
    data = "{class_path: Table, init_args: {file: rings.csv, target: ring}}"
    (tmp_path / "c.yaml").write_text(f"data: {data}\nmodel: ThetaMLP\ntrainer: {{max_epochs: 1, logger: false}}\n")

    def start(thetas: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / example), "c.yaml", "--out", "runs", f"model.theta={thetas}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)

    first = start("0.5,2")
    assert first.returncode == 1, first.stderr
    assert "failed: theta2: " in first.stderr
    assert "theta must lie in [0, 1], got 2.0" in first.stderr
    table = list(csv.DictReader((tmp_path / "runs" / "sweep.csv").read_text().splitlines()))
    assert [row["run"] for row in table] == ["theta0.5"]
    weights = tmp_path / "runs" / "theta0.5" / "best.safetensors"
    before = weights.stat().st_mtime_ns
    second = start("0.5")
    assert second.returncode == 0, second.stderr
    table = list(csv.DictReader((tmp_path / "runs" / "sweep.csv").read_text().splitlines()))
    assert [row["run"] for row in table] == ["theta0.5"]
    assert weights.stat().st_mtime_ns == before, "a finished run is not repeated"
