"""The command line: it does what the library does, writes where it says, and explains what was wrong."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from jsonargparse import ArgumentParser

from resolvent import analysis
from resolvent.schemes import Theta
from resolvent_lab import cli
from resolvent_lab.command import Command, CommandError, Interrupted
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.command import REPRODUCE
from resolvent_lab.stability import scheme_named


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
    assert str(analysis.scheme_facts(scheme_named(name))) in out
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
        (["stability", "--spectrum", "junk"], "junk"),
        (["figures", "phase", "--step", "0"], "h, omega and periods must be positive"),
        (["reproduce", "mnist", "--quick", "--data-dir", "iris.csv"], "iris.csv is not an NPZ file"),
        (["reproduce", "mnist", "--quick", "--data-dir", "nowhere"], "there is no nowhere: give a folder"),
        (["reproduce", "stiff", "--seeds", "0"], "seeds is a number of repetitions and must be 1 or more, got 0"),
        (["reproduce", "stiff", "--out", "iris.csv"], "--out must be a folder, but iris.csv is a file"),
        (["bench", "--out", "iris.csv/deeper"], "--out must be a folder, but iris.csv is a file"),
        (["stability", "--out", "/proc/nowhere"], "cannot write to --out /proc/nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_ends_with_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESOLVENT_DATA_DIR", "")  # put back afterwards
    monkeypatch.setenv("RESOLVENT_DEVICE", "cpu")
    (tmp_path / "junk").write_bytes(b"junk that is no checkpoint")
    (tmp_path / "iris.csv").write_text("5.1,3.5,1.4,0.2,setosa\n")
    assert words in refused(capsys, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iris.csv", "junk"], "nothing was begun"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stability", "--tau", "1"], "--tau"),
        (["stability", "--the", "1"], "--the"),
        (["stability", "--theta", "x"], "theta"),
        (["reproduce", "stiff", "--theta", "0", "x"], "--theta"),
        (["reproduce", "stif"], "'stif'"),
        (["reproduce"], "experiment"),
        (["figures"], "{stability,phase}"),
        (["unknown"], "'unknown'"),
        ([], "{train,evaluate,predict,diagnose,reproduce"),
        (["stability", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *arguments)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line that says what was wrong with the arguments."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(argument) for argument in arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("resolvent: ")
    assert error.count("\n") == 1
    return error


COMMANDS = (["bench"], ["reproduce", "stiff"], ["stability"], ["figures", "stability"], ["figures", "phase"])
"""All commands, with the arguments that they need."""


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        run(capsys, *arguments, "--print_config")
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_printed_configuration_is_read_again(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = printed(capsys, *command, "--out", tmp_path)
    file = tmp_path / "options.yaml"
    file.write_text(options)
    assert f"out: {tmp_path}\n" in options
    name = command if command[0] == "figures" else command[:1]  # the experiment is in the file
    assert printed(capsys, *name, "--config", file) == options


def test_a_command_runs_from_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(f"theta: 0.75\nout: {tmp_path}\n")
    assert str(analysis.scheme_facts(Theta(0.75))) in run(capsys, "stability", "--config", file)
    assert (tmp_path / "stability.png").exists()
    out = run(capsys, "stability", "--config", file, "--theta", 0.25)
    assert str(analysis.scheme_facts(Theta(0.25))) in out, "later options override the file"


def test_a_flag_of_a_configuration_can_be_unset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("experiment: stiff\nquick: true\n")
    assert "quick: true\n" in printed(capsys, "reproduce", "--config", file)
    assert "quick: false\n" in printed(capsys, "reproduce", "--config", file, "--no-quick")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thta: 0.5", "thta"),
        ("theta: 1", "theta"),
        ("theta: [a]", "theta"),
        ("seeds: 1.5", "seeds"),
        ("seeds: 0", "seeds is a number of repetitions"),
        ("device: tpu", "'tpu'"),
        ("columns: 5", "columns"),
        ("quick: maybe", "maybe"),
        ("- 1", "- 1"),
        ("quick: [", "Problems parsing config"),
    ],
)
def test_a_configuration_is_checked(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESOLVENT_DATA_DIR", "")  # put back afterwards
    monkeypatch.setenv("RESOLVENT_DEVICE", "cpu")
    file = tmp_path / "options.yaml"
    file.write_text(text)
    assert words in refused(capsys, "reproduce", "stiff", "--out", tmp_path / "results", "--config", file)
    assert not (tmp_path / "results").exists()


def test_what_to_install_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["stability"])
    assert stopped.value.code == 1
    assert 'pip install "resolvent[experiments]"' in capsys.readouterr().err


def test_a_command_is_a_record_and_an_entry(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(x: int) -> None:
        print(2 * x)

    command = Command("double", "Double a number.", lambda parser: parser.add_argument("--x", type=int), double)
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, command))
    assert run(capsys, "double", "--x", 21) == "42\n"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ValueError("wrong"), 2),
        (CommandError("wrong"), 1),
        (OSError("wrong"), 1),
        (ImportError("no module wrong", name="wrong"), 1),
        (Interrupted(15), 143),
    ],
)
def test_ends(failure: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise failure

    monkeypatch.setattr(cli, "COMMANDS", (Command("fail", "Fail.", run=fail),))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fail"])
    assert stopped.value.code == code


def test_choices_are_those_of_their_owners() -> None:
    """They are written out in the command, so that help needs no torch."""
    from resolvent_lab.experiments.machine import DEVICES
    from resolvent_lab.images.sources import SOURCES
    from resolvent_lab.robustness import SIZES

    parser = ArgumentParser()
    REPRODUCE.arguments(parser)
    choices = {action.dest: action.choices for action in parser._actions if action.choices is not None}
    assert choices["experiment"] == [*experiments(), "all"]
    assert choices["device"] == DEVICES
    assert choices["data"] == SOURCES
    assert choices["attacks"] == ("none", *SIZES)


def python(*arguments: str) -> str:
    """What a Python of its own prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ([], "--help"),
        (["reproduce"], "--help"),
        (["bench"], "--help"),
        (["stability"], "--help"),
        (["figures", "phase"], "--help"),
        (["evaluate"], "--help"),
        (["reproduce"], "--print_config"),
    ],
)
def test_help_loads_no_heavy_library(command: list[str], option: str) -> None:
    code = (
        "import atexit, runpy, sys\n"
        "heavy = ('torch', 'numpy', 'matplotlib', 'lightning', 'resolvent')\n"
        "atexit.register(lambda: print('heavy:', [name for name in heavy if name in sys.modules]))\n"
        f"sys.argv = ['resolvent', *{command!r}, {option!r}]\n"
        "runpy.run_module('resolvent_lab', run_name='__main__')"
    )
    out = python("-c", code)
    assert (f"usage: {' '.join(['resolvent', *command])}" if option == "--help" else "seeds: 1\n") in out
    assert "heavy: []" in out


def test_the_version_is_told() -> None:
    assert python("-m", "resolvent_lab", "--version") == f"resolvent {version('resolvent')}\n"


def test_training_alone_as_a_module() -> None:
    assert "train_only: true\n" in python("-m", "resolvent_lab.experiments", "stiff", "--print_config")
