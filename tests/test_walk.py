"""The way of a forward pass from the block to the field does not get longer."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import resolvent as rs

ROOT = Path(__file__).parents[1]
WALK = runpy.run_path(str(ROOT / "benchmarks" / "walk.py"))
# Files, depth, files to the field, depth of the field, functions between the solver and the field.
LIMITS = {
    'rs.Autonomous(module), mode="auto"': (33, 19, 12, 18, 4),
    'rs.fields.MLP, mode="auto"': (32, 16, 10, 14, 1),
    'rs.Autonomous(module), mode="sequential"': (31, 19, 12, 18, 4),
    'rs.fields.MLP, mode="sequential"': (31, 17, 11, 15, 1),
}


@pytest.fixture(scope="module")
def walks() -> dict[str, Any]:
    found: dict[str, Any] = WALK["walks"]()
    return found


@pytest.mark.parametrize("case", LIMITS)
def test_the_walk_does_not_grow(case: str, walks: dict[str, Any]) -> None:
    walk = walks[case]
    grown = [n > limit for n, limit in zip(walk.numbers, LIMITS[case], strict=True)]
    assert not any(grown), f"{walk.numbers}: {sorted(walk.files)}, {walk.deepest}, {walk.to_field}"


def test_every_case_has_a_limit(walks: dict[str, Any]) -> None:
    assert set(walks) == set(LIMITS)


def test_the_page_shows_the_walk_of_today(walks: dict[str, Any]) -> None:
    """`python benchmarks/walk.py --write` brings it up to date."""
    assert WALK["table"](walks) in (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_trace_sees_the_block_the_solver_and_the_field(walks: dict[str, Any]) -> None:
    for walk in walks.values():
        assert {"blocks/block.py", "solvers/newton.py"} <= walk.files
        assert walk.deepest[0].endswith("Block.forward")
        assert any(name.startswith("fields/") for name in walk.files)
        assert walk.between


def test_a_trace_leaves_no_hook_behind() -> None:
    before = sys.getprofile()
    WALK["trace"](rs.fields.MLP(2, 4, 1), "sequential")
    assert sys.getprofile() is before
