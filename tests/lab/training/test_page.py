"""The page on training: its files, its commands and its Python, one after the other, as a reader would."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from resolvent_lab import cli

PAGE = Path(__file__).parents[3] / "docs" / "train.md"
_BLOCK = re.compile(r"^```(python|yaml|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_everything_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    session: dict[str, object] = {"__name__": "__main__"}
    commands = 0
    for language, text in _BLOCK.findall(PAGE.read_text()):
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), session)
        elif language == "yaml":
            name = text.splitlines()[0].removeprefix("# ")
            Path(name).write_text(text)
        else:
            for line in text.splitlines():
                run(shlex.split(line, comments=True))
                commands += 1
    assert commands == 10
    said = capsys.readouterr().out
    assert "max_epochs: 10" in said
    accuracy = float(next(line.split()[1] for line in said.splitlines() if line.startswith("accuracy")))
    assert accuracy > 0.9, "the first example learns"
    for path in ("predictions.csv", "decay-predictions.npz", "rings-run/diagnosis/iterations.png", "my-logs"):
        assert Path(path).exists()


def run(command: list[str]) -> None:
    assert command[0] == "resolvent"
    if "--print_config" not in command:
        cli.main(command[1:])
        return
    with pytest.raises(SystemExit) as stopped:
        cli.main(command[1:])
    assert stopped.value.code == 0
