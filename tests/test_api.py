"""The public names: few at the top, each once on the page of the API, and quick to import."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import resolvent as rs
from public_names import public_names
from resolvent import extending

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
MOST_NAMES = 45
_DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:data):: resolvent\.(\S+)$", re.MULTILINE)


def test_the_top_level_has_few_names() -> None:
    assert len(rs.__all__) <= MOST_NAMES
    assert len(set(rs.__all__)) == len(rs.__all__)
    assert all(hasattr(rs, name) for name in rs.__all__)


def test_the_page_has_every_public_name_once() -> None:
    public = [name for name, _ in public_names()] + [f"extending.{name}" for name in extending.__all__]
    documented = Counter(_DIRECTIVE.findall(PAGE.read_text(encoding="utf-8")))
    assert sorted(name for name, count in documented.items() if count > 1) == []
    assert sorted(set(public) - set(documented)) == []
    assert sorted(set(documented) - set(public)) == []


def test_no_other_page_documents_names() -> None:
    """A second description of a name would make the first one no page's own."""
    others = [page for page in PAGE.parent.glob("*.md") if page != PAGE]
    assert [page.name for page in others if ".. auto" in page.read_text(encoding="utf-8")] == []


HEAVY = ["torch._dynamo", "sympy", "matplotlib", "lightning"]
_IMPORT = f"""
import json, sys, time
found = []
for statement in ("import torch", "import resolvent, resolvent.extending"):
    start = time.process_time()
    exec(statement)
    seconds = time.process_time() - start
    found.append((seconds, [name for name in {HEAVY!r} if name in sys.modules]))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def imports() -> list[Any]:
    """What importing torch, and then the library, takes and loads, in some fresh interpreters."""
    command = [sys.executable, "-c", _IMPORT]
    return [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(2)]


@pytest.mark.slow
def test_the_import_takes_less_than_twice_that_of_torch(imports: list[Any]) -> None:
    """The least of several times: what else the machine does makes them longer, never shorter."""
    torch, more = (min(run[i][0] for run in imports) for i in (0, 1))
    assert more < torch


@pytest.mark.slow
@pytest.mark.parametrize("module", HEAVY)
def test_the_import_leaves_alone(module: str, imports: list[Any]) -> None:
    (_, before), (_, after) = imports[0]
    assert module not in before, "torch itself loads it now: the next line would say nothing"
    assert module not in after
