"""The scripts in examples/: each is short, says how it is started, and runs."""

import ast
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# In place of the command line: fewer steps.
ARGUMENTS = {"digits": ["2"], "transformer": ["3"]}
# What the last line must say.
ENDS = {
    "convert": "theta = 0.5",
    "diffusion": "diffusion 0.0",
    "digits": "noise 0.5",
    "diode": "I0 = 1.",
    "throw": "lands at 20.",
    "transformer": "of the ranks right",
    "two_moons": "The fixed point",
}


def test_there_are_eight_and_each_is_short_and_says_how_it_is_started() -> None:
    assert len(EXAMPLES) == 8
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") < 60, path.name
        assert f"examples/{path.name}" in (ast.get_docstring(ast.parse(text)) or ""), path.name


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem in ENDS], ids=lambda path: path.stem)
def test_an_example_runs(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(sys, "argv", [str(path), *ARGUMENTS.get(path.stem, [])])
    runpy.run_path(str(path), run_name="__main__")
    assert ENDS[path.stem] in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_one_process_and_two_learn_the_same() -> None:
    program = ROOT / "examples" / "several_processes.py"
    losses = []
    for processes in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run(
            [*command, str(program), "--steps", "4"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        losses.append(json.loads(done.stdout.splitlines()[-1]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
