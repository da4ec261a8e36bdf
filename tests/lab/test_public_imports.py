"""The application uses the library as everybody does: through its public names."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import resolvent as rs
import resolvent_lab

ROOT = Path(resolvent_lab.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
PARTS = [name for name in rs.__all__ if isinstance(getattr(rs, name), ModuleType)]
MODULES = {"resolvent", *(f"resolvent.{name}" for name in (*PARTS, "extending", "plotting", "schemes.tableaux"))}
NAMED_TUPLE = {"_asdict", "_fields", "_replace"}


def faults(source: str) -> list[str]:
    """What a file takes from the library that is not public."""
    tree = ast.parse(source)
    names = [name for node in ast.walk(tree) for name in _names(node)]
    private = [ast.unparse(node) for node in ast.walk(tree) if _is_private(node)]
    return [name for name in names if not is_public(name)] + private


def _names(node: ast.AST) -> Iterator[str]:
    """The full names, resolvent.a.b, that an import or an attribute stands for."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "resolvent")
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "resolvent":
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    if isinstance(node, ast.Attribute):
        whole = ast.unparse(node)
        for local, full in (("rs", "resolvent"), ("plotting", "resolvent.plotting")):
            if whole.startswith(f"{local}.") and whole.replace(".", "").isidentifier():
                yield full + whole.removeprefix(local)


def is_public(name: str) -> bool:
    """Whether every step of resolvent.a.b leads to a public module or to something that one of them exports."""
    value: object = rs
    for n, part in enumerate(parts := name.split(".")[1:], start=1):
        if not isinstance(value, ModuleType):
            return True  # an attribute of a public class, which is judged by its underscore
        module = ".".join(["resolvent", *parts[:n]])
        if module in MODULES and importlib.util.find_spec(module):
            value = importlib.import_module(module)
            continue
        if part not in getattr(value, "__all__", vars(value)) and part != "__version__":
            return False
        value = getattr(value, part)
        if isinstance(value, ModuleType):
            return False
    return True


def _is_private(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
        return False
    return ast.unparse(node.value) not in ("self", "cls") and node.attr not in NAMED_TUPLE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_names_of_the_library_are_used(path: Path) -> None:
    assert not faults(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "from resolvent.blocks.weights import frozen_weights",
        "from resolvent.blocks import weights",
        "import resolvent.equation.options",
        "import resolvent as rs\nrs.equation.options",
        "import resolvent as rs\nrs.blocks.block.Block",
        "import resolvent as rs\nblock = rs.ThetaBlock(f)\nblock._pass(x)",
        "import resolvent as rs\nrs.Nothing",
    ],
)
def test_what_is_not_public_is_found(source: str) -> None:
    assert faults(source)


def test_public_names_are_not_found() -> None:
    allowed = "import resolvent as rs\nfrom resolvent import plotting\nrs.schemes.tableaux.RK4\nrs.Status.CONVERGED"
    assert not faults(allowed)
