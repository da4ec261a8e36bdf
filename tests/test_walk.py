"""The way of a forward pass from the block to the field does not get longer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
# Files, depth, files to the field, depth of the field, functions between the solver and the field.
LIMITS = {
    'rs.Autonomous(module), mode="auto"': (44, 12, 10, 12, 2),
    'rs.fields.MLP, mode="auto"': (40, 12, 9, 11, 1),
    'rs.Autonomous(module), mode="sequential"': (37, 12, 12, 12, 2),
    'rs.fields.MLP, mode="sequential"': (34, 12, 11, 11, 1),
}


@pytest.fixture(scope="module")
def traced() -> Any:
    """What the script finds in a fresh interpreter: what was imported or run before does not count."""
    command = [sys.executable, str(ROOT / "benchmarks" / "walk.py"), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("case", LIMITS)
def test_the_walk_does_not_grow(case: str, traced: Any) -> None:
    walk = traced["cases"][case]
    assert all(number <= limit for number, limit in zip(walk["numbers"], LIMITS[case], strict=True)), walk


def test_every_case_has_a_limit(traced: Any) -> None:
    assert set(traced["cases"]) == set(LIMITS)


def test_the_page_shows_the_walk_of_today(traced: Any) -> None:
    """`python benchmarks/walk.py --write` brings it up to date."""
    assert traced["table"] in (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_trace_sees_the_block_the_solver_and_the_field(traced: Any) -> None:
    for walk in traced["cases"].values():
        assert "blocks/block.py" in walk["files"]
        assert {"solvers/newton.py", "solvers/simplified_newton.py"} & set(walk["files"])
        assert walk["deepest"][0].endswith("Block.forward")
        assert walk["to_field"][0].endswith("Block.forward")
        assert walk["to_field"][-1].startswith("fields/")
