"""The documentation: every name it mentions exists, every example runs, and every link leads somewhere."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent import extending
from resolvent_lab.experiments.catalogue import experiments

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {
    "docs/api-examples.md",
    "docs/deploy.md",
    "docs/getting-started.md",
    "docs/models.md",
    "docs/robustness.md",
    "docs/train.md",
}

_NAME = re.compile(r"\b(rs|resolvent)((?:\.[A-Za-z_]\w*)+)")
_CALL = re.compile(r"(?<!optim\.)\b([A-Z]\w+)\(([^()]*)")
_KEYWORD = re.compile(r"\b([A-Za-z_]\w*)=(?!=)")
# The info string after the language: an example that needs a device, or hours, says no-run.
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def mentioned(path: Path) -> Iterator[tuple[int, str]]:
    """The dotted names in a file, with the numbers of their lines."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for match in _NAME.finditer(line):
            yield number, match[0]


def exists(name: str) -> bool:
    """Whether a dotted name leads from the package to something; `rs` stands for it."""
    value: object = importlib.import_module("resolvent")
    path = "resolvent"
    for part in name.split(".")[1:]:
        path += f".{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            if part in getattr(value, "__annotations__", {}):  # the field of a dataclass
                return True
            try:
                value = importlib.import_module(path)
            except ImportError:
                return False
    return True


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=name_of)
def test_every_name_exists(path: Path) -> None:
    missing = [f"line {number}: {name}" for number, name in mentioned(path) if not exists(name)]
    assert not missing


def test_names_that_do_not_exist_are_found() -> None:
    assert not exists("rs.Theta")
    assert not exists("rs.schemes.Euler")
    assert exists("rs.schemes.Theta")
    assert exists("rs.Solution.status")
    assert exists("resolvent.plotting.save")


def public_classes() -> dict[str, type]:
    parts = [
        rs.blocks,
        rs.integrate,
        rs.fields,
        rs.schemes,
        rs.spectral,
        rs.estimators,
        rs.regularizers,
        rs.models,
        rs.analysis,
    ]
    modules = [rs, *parts, extending]
    return {name: value for module in modules for name, value in vars(module).items() if _is_made_by_users(value)}


def _is_made_by_users(value: object) -> bool:
    return inspect.isclass(value) and not issubclass(value, Exception)


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=name_of)
def test_every_argument_exists(path: Path) -> None:
    """In calls of classes of the library, in the text as in the code: `Stopping(max_steps=...)`, say."""
    classes = public_classes()
    unknown = []
    for name, arguments in _CALL.findall(path.read_text(encoding="utf-8")):
        if name in classes:
            known = inspect.signature(classes[name]).parameters
            free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
            unknown += [f"{name}({word}=...)" for word in _KEYWORD.findall(arguments) if word not in known and not free]
    assert not unknown


def examples(path: Path) -> Iterator[tuple[int, str]]:
    """The Python blocks of a page, with the numbers of the lines before them."""
    text = path.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        if "no-run" not in match[1]:
            yield text.count("\n", 0, match.start(2)), match[2]


WITH_EXAMPLES = [path for path in PAGES if any(examples(path))]


@pytest.fixture
def catalogue() -> Iterator[None]:
    """Forgets the experiments that an example registers: other tests look at all there are."""
    yield
    experiments.cache_clear()


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if name_of(path) in SLOW else (), id=name_of(path))
        for path in WITH_EXAMPLES
    ],
)
def test_the_examples_of_a_page_run_in_their_order(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader would run them: in one session, in single precision, with warnings as errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    torch.set_default_dtype(torch.float32)
    session: dict[str, object] = {"__name__": "__main__"}
    for before, source in examples(path):
        exec(compile("\n" * before + source, name_of(path), "exec"), session)


def test_few_examples_are_not_run() -> None:
    skipped = [name_of(path) for path in PAGES for match in _BLOCK.finditer(path.read_text()) if "no-run" in match[1]]
    assert skipped == ["docs/from-torchdeq.md", "docs/pytorch.md"]


_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(path: Path) -> None:
    """Anchors are checked when the documentation is built, and addresses elsewhere for their form."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for target in _LINK.findall(text):
        if target.startswith("http"):
            wrong += [] if re.fullmatch(r"https://[a-z0-9.-]+\.[a-z]+/\S*", target) else [target]
        elif not target.startswith("#") and not (path.parent / target.split("#")[0]).exists():
            wrong.append(target)
    assert not wrong


_INDENTED = re.compile(r"(?:^    .*\n?)+", re.MULTILINE)


def docstring_examples() -> Iterator[tuple[str, str]]:
    """Indented code in docstrings that uses the library, with the names of what it documents."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for block in _INDENTED.findall(ast.get_docstring(node) or ""):
                    source = textwrap.dedent(block)
                    if re.search(r"\brs\.\w+[\w.]*\(", source) and _is_code(source):
                        yield f"{path.stem}.{getattr(node, 'name', 'module')}", source


def _is_code(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return not re.match(r"[a-z_, ]+: ", source)  # an entry of a list of arguments


EXAMPLES = dict(docstring_examples())


def test_the_examples_of_docstrings_are_found() -> None:
    assert {"sensitivity.Sensitivity", "monitor.Monitor", "equilibrium.Equilibrium"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name: str) -> None:
    """With the names that a reader would have: a model, its inputs and labels, a field."""
    if name.startswith("cuda_graph") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if name == "export.export":
        pytest.skip("takes a minute; docs/deploy.md does the same")
    linear = nn.Linear(3, 3)
    nn.init.uniform_(linear.weight, -0.1, 0.1)
    field = rs.fields.MLP(3, 8, 1)
    x = torch.randn(4, 3)
    model, y = nn.Sequential(rs.ThetaBlock(field), nn.Linear(3, 2)), torch.randn(4, 2)
    session: dict[str, object] = {
        "torch": torch,
        "nn": nn,
        "rs": rs,
        "linear": linear,
        "field": field,
        "f": lambda z, x: torch.tanh(linear(z) + x),
        "layer": rs.Equilibrium(lambda z, x: torch.tanh(linear(z) + x)),
        "model": model,
        "network": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "batches": [(x, y)],
        "x": x,
        "y": y,
        "images": x,
        "labels": torch.tensor([0, 1, 1, 0]),
        "loss": nn.functional.mse_loss,
        "loss_of": nn.functional.mse_loss,
        "criterion": torch.Tensor.sum,
        "cross_entropy": nn.functional.cross_entropy,
    }
    exec(compile(EXAMPLES[name], name, "exec"), session)


_ENTRY = re.compile(r"^\.\. (?:auto\w+|py:data):: (\S+)$", re.MULTILINE)


def test_every_entry_of_the_reference_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines below the entry, or pages that use the name. That they run is tested page by page."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "_extensions")
    reference_examples = importlib.import_module("reference_examples")
    names = _ENTRY.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    short = {name: name.rsplit(".", 1)[1] for name in names}
    without = {name for name, last in short.items() if reference_examples.example_of(last) is None}
    assert without == {"resolvent.blocks.export"}  # it takes a minute: docs/deploy.md runs it
    assert reference_examples.pages_with("export") == ["deploy"]
    assert reference_examples.example_of("BDF3") == "rs.Block(field, rs.schemes.BDF2, num_steps=5)(x)  # or BDF3"
    assert reference_examples.example_of("NoSuchName") is None
