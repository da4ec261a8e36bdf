"""The command line: it does what the library does, writes where it says, and explains what was wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from resolvent import analysis
from resolvent.schemes import Theta
from resolvent_lab import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    cli.main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def written(out: str) -> list[Path]:
    return [Path(line.removeprefix("wrote ")) for line in out.splitlines() if line.startswith("wrote ")]


def test_stability(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "stability", "--theta", 0.75, "--out", tmp_path)
    assert str(analysis.scheme_facts(Theta(0.75))) in out
    assert written(out) == [tmp_path / "stability.png", tmp_path / "stability.pdf"]
    assert all(path.stat().st_size > 1000 for path in written(out))


@pytest.mark.parametrize("name", ["RK4", "bdf2", "VERLET"])
def test_stability_of_named_schemes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "stability", "--scheme", name, "--out", tmp_path)
    assert str(analysis.scheme_facts(cli._scheme(name))) in out
    assert len(written(out)) == 2


def test_spectrum_of_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.ckpt"
    analysis.Spectrum(torch.tensor([-30.0 + 0j, -1.0 + 1j, 2.0 + 0j]), h=0.1).save(path)
    out = run(capsys, "stability", "--theta", 0.0, "--spectrum", path, "--out", tmp_path / "figures")
    assert "2 of 3 eigenvalues grow, by up to 2\n" in out  # 1 + z at z = -3, -0.1 + 0.1i, 0.2
    assert written(out)[0] == tmp_path / "figures" / "stability.png"
    out = run(capsys, "stability", "--theta", 0.0, "--spectrum", path, "--step", 0.05, "--out", tmp_path)
    assert "1 of 3 eigenvalues grow, by up to 1.1\n" in out


@pytest.mark.parametrize(("figure", "name"), [("stability", "theta_regions"), ("phase", "phase_diagrams")])
def test_figures(figure: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "figures", figure, "--out", tmp_path)
    assert written(out) == [tmp_path / f"{name}.png", tmp_path / f"{name}.pdf"]
    assert all(path.stat().st_size > 1000 for path in written(out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stability", "--theta", "2"], "theta must lie in [0, 1], got 2.0"),
        (["stability", "--scheme", "RK5"], "there is no scheme 'RK5': take one of ADAMS_MOULTON3"),
        (["stability", "--spectrum", "/nowhere.ckpt"], "there is no checkpoint '/nowhere.ckpt'"),
        (["figures", "phase", "--step", "0"], "h, omega and periods must be positive"),
    ],
)
def test_errors_are_a_line(arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert words in str(stopped.value)
    assert str(stopped.value).startswith("resolvent: ")


@pytest.mark.parametrize("arguments", [["stability", "--tau", "1"], ["stability", "--theta", "x"], ["unknown"], []])
def test_wrong_options_end_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: resolvent" in capsys.readouterr().err


def test_a_command_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: int) -> None:
        print(2 * x)

    monkeypatch.setitem(cli.COMMANDS, "double", double)
    assert run(capsys, "double", "--x", 21) == "42\n"


def test_as_a_module() -> None:
    """In a process of its own, which also shows that the package itself imports no plotting."""
    code = (
        "import runpy, sys, resolvent.analysis; assert 'matplotlib' not in sys.modules; "
        "sys.argv = ['resolvent', '--help']; runpy.run_module('resolvent_lab', run_name='__main__')"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert process.returncode == 0, process.stderr
    assert "stability" in process.stdout
    assert "figures" in process.stdout
