"""The tutorials, and the page of concepts: all of their cells run, in a shortened form, and end in a figure.

In full length they are executed when the documentation is built.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [ROOT / "docs" / "concepts.md", *sorted((ROOT / "docs" / "tutorials").glob("[0-9]*.md"))]
# In place of what a cell with the tag "parameters" sets.
SHORT: dict[str, dict[str, Any]] = {
    "1-robustness": {"steps": 2},
    "2-stiff": {"iterations": 1},
    "3-long-time": {"steps": 5, "periods": 11},
    "4-spectrum": {"steps": 2},
    "5-doses": {"steps": 1},
    "6-equilibrium": {"epochs": 1},
    "7-processes": {"steps": 2},
    "8-certify": {"steps": 2, "attacked": 20},
}

_CELL = re.compile(r"^```\{code-cell\} python\n((?::[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(path: Path) -> Iterator[tuple[int, str, str]]:
    """The cells of a notebook: the number of lines before the code, the options, the code."""
    text = path.read_text(encoding="utf-8")
    for match in _CELL.finditer(text):
        yield text.count("\n", 0, match.start(2)), match[1], match[2]


def test_there_are_eight_tutorials_and_each_can_be_shortened() -> None:
    assert [path.stem for path in NOTEBOOKS[1:]] == list(SHORT)
    for path in NOTEBOOKS[1:]:
        session: dict[str, object] = {}
        for _, options, source in cells(path):
            if "parameters" in options:
                exec(source, session)
        assert set(SHORT[path.stem]) == set(session) - {"__builtins__"}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_draws(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (ROOT / "build" / "tutorials").exists():
        pytest.skip("the documentation was built, which executes it in full length")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.switch_backend("agg")
    torch.set_default_dtype(torch.float32)
    session: dict[str, object] = {"__name__": "__main__"}
    try:
        for before, options, source in cells(path):
            exec(compile("\n" * before + source, path.name, "exec"), session)
            if "parameters" in options:
                session.update(SHORT[path.stem])
        assert plt.get_fignums()
    finally:
        plt.close("all")
        torch.set_default_dtype(torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_built_page_shows_every_figure(path: Path) -> None:
    page = (ROOT / "build" / "docs" / path.relative_to(ROOT / "docs")).with_suffix(".html")
    if not page.exists():
        pytest.skip("make docs was not run")
    drawing = sum("plotting.paper_style()" in source for _, _, source in cells(path))
    assert page.read_text(encoding="utf-8").count("<img ") == drawing
