"""Traces one forward pass of a block and counts how far it is from the block to the field, for docs/design.md.

python benchmarks/walk.py [--write] [--frames | --json]

In a fresh interpreter: once the compiler is loaded, a pass goes around it by one function more.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs

PAGE = Path(__file__).parent.parent / "docs" / "design.md"
BEGIN, END = "<!-- walk: begin -->", "<!-- walk: end -->"
LIBRARY = Path(rs.__file__).parent
FIELDS = LIBRARY / "fields"
# Whether these are frames of their own depends on the version of Python.
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Own(nn.Module):
    """A module as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, y: Tensor) -> Tensor:
        return torch.tanh(self.linear(y))


@dataclass
class Walk:
    """What one forward pass goes through. Functions of torch and of the user do not count.

    Attributes:
        files: the files of the library that are entered.
        deepest: the functions of the library that are active at the deepest point, from the block on.
        to_field: the same where the field is evaluated, down to the field itself.
        between: those between a solver and the field.
    """

    files: set[str] = field(default_factory=set)
    deepest: list[str] = field(default_factory=list)
    to_field: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """In the order of the table's columns."""
        on_the_way = {name.split(":")[0] for name in self.to_field}
        return len(self.files), len(self.deepest), len(on_the_way), len(self.to_field), len(self.between)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """The hook for `sys.setprofile`."""
        if event != "call" or not _counts(frame):
            return
        self.files.add(_path(frame).relative_to(LIBRARY).as_posix())
        stack = _stack(frame)
        names = [_name(f) for f in stack]
        self.deepest = max(self.deepest, names, key=len)
        start = next((i for i in reversed(range(len(stack))) if _is_solver(stack[i])), None)
        if start is not None and FIELDS in _path(frame).parents:
            end = next(i for i in range(start, len(stack)) if FIELDS in _path(stack[i]).parents)
            self.to_field = max(self.to_field, names[: end + 1], key=len)
            self.between = max(self.between, names[start + 1 : end], key=len)


def trace(field: Any, mode: str) -> Walk:
    """The walk of a forward pass with default settings. It is the second one: the first checks the field."""
    block = rs.ThetaBlock(field, mode=mode)
    x = torch.linspace(-1, 1, 16).reshape(8, 2)
    block(x)
    walk = Walk()
    before = sys.getprofile()
    sys.setprofile(walk)
    try:
        block(x)
    finally:
        sys.setprofile(before)
    return walk


def walks() -> dict[str, Walk]:
    """By the name of the case."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fields = {"rs.Autonomous(module)": rs.Autonomous(Own()), "rs.fields.MLP": rs.fields.MLP(2, 8, 1)}
    return {
        f'{name}, mode="{mode}"': trace(field, mode)
        for mode in ("auto", "sequential")
        for name, field in fields.items()
    }


def table(found: dict[str, Walk]) -> str:
    heads = ["field and mode", "files", "depth", "files to the field", "depth of the field", "solver to field"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += ["| `" + name + "` | " + " | ".join(map(str, walk.numbers)) + " |" for name, walk in found.items()]
    return "\n".join(lines)


def _path(frame: FrameType) -> Path:
    return Path(frame.f_code.co_filename)


def _counts(frame: FrameType) -> bool:
    return LIBRARY in _path(frame).parents and frame.f_code.co_name not in COMPREHENSIONS


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of the library that are active, the outermost first."""
    found = []
    while frame is not None:
        if _counts(frame):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _is_solver(frame: FrameType) -> bool:
    return frame.f_code.co_name in ("init", "step") and _path(frame).parent.name == "solvers"


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{_path(frame).relative_to(LIBRARY).as_posix()}:{code.co_firstlineno} {code.co_qualname}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--frames", action="store_true", help="show the files and the functions of every case")
    parser.add_argument("--json", action="store_true", help="print the table and all that was found")
    arguments = parser.parse_args()
    found = walks()
    if arguments.json:
        cases = {
            name: {"numbers": w.numbers, "files": sorted(w.files), "deepest": w.deepest, "to_field": w.to_field}
            for name, w in found.items()
        }
        print(json.dumps({"table": table(found), "cases": cases}))
        return
    print(table(found))
    for name, walk in found.items() if arguments.frames else ():
        print(f"\n{name}", *sorted(walk.files), "deepest:", *walk.deepest, "to the field:", *walk.to_field, sep="\n  ")
    if arguments.write:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
