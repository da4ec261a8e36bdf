"""Shows an example below each entry of the reference, and names the pages with more. The tests run all of them."""

import re
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

DOCS = Path(__file__).parents[1]
SOURCE = "api-examples"
MOST = 4  # pages
WIDTH = 86  # of a line of code below an entry
_BLOCK = re.compile(r"^```(?:python|\{code-cell\} python)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PACKAGES = "rs|resolvent|analysis|estimators|extending|fields|plotting|regularizers|schemes|tableaux"
# A directive with its options and, for constants, the sentence below it.
_ENTRY = re.compile(r"^\.\. (?:auto\w+|py:data):: (\S+)\n(?:   :.*\n)*(?:\n   \S.*\n)*", re.MULTILINE)


@cache
def code() -> dict[str, list[str]]:
    """The blocks of Python code of each page that has some, tutorials last."""
    pages = sorted(DOCS.glob("*.md")) + sorted((DOCS / "tutorials").glob("*.md"))
    found = {page: _BLOCK.findall(page.read_text(encoding="utf-8")) for page in pages}
    return {page.relative_to(DOCS).with_suffix("").as_posix(): blocks for page, blocks in found.items() if blocks}


def pages_with(name: str) -> list[str]:
    """Pages with `rs.Name` or `fields.Name` in their code, or with an import of the name."""
    use = re.compile(rf"{_qualified(name)}|^from resolvent.* import .*\b{re.escape(name)}\b", re.MULTILINE)
    return [page for page, blocks in code().items() if any(use.search(block) for block in blocks)]


def example_of(name: str) -> str | None:
    """The first lines of the source that use a name, up to the next empty line; or that name it in a comment."""
    parts = [part for block in code()[SOURCE][1:] for part in re.split(r"\n\n(?=\S)", block.strip("\n"))]
    for pattern in (_qualified(name), rf"# or .*\b{re.escape(name)}\b"):
        for part in parts:
            if re.search(pattern, part):
                return "\n".join(_narrow(line) for line in part.splitlines())
    return None


def _narrow(line: str) -> str:
    """A line of code with its comment two spaces behind it, or above it if there is no room."""
    code, space, comment = re.fullmatch(r"(.*?)( {2,}#)?((?<=#).*)?", line).groups(default="")
    if len(code) + len(comment) + 3 <= WIDTH or not space:
        return f"{code}  #{comment}" if space else line
    return f"{' ' * (len(code) - len(code.lstrip()))}#{comment}\n{code}"


def _qualified(name: str) -> str:
    return rf"\b(?:{_PACKAGES})(?:\.\w+)*\.{re.escape(name)}\b"


def _with_example(entry: re.Match[str]) -> str:
    name = entry[1].rsplit(".", 1)[1]
    example, pages = example_of(name), [page for page in pages_with(name) if page != SOURCE][:MOST]
    text = ""
    if example is not None:
        text += f"\n   .. code-block:: python\n\n{indent(example, ' ' * 6)}\n"
    if pages:
        text += f"\n   {'More' if example else 'Examples'}: {', '.join(f':doc:`/{page}`' for page in pages)}.\n"
    return f"{entry[0]}{text}\n" if text else entry[0]


def _add_examples(app: Any, page: str, source: list[str]) -> None:
    if page == "api":
        app.env.note_dependency(str(DOCS / f"{SOURCE}.md"))
        source[0] = _ENTRY.sub(_with_example, source[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _add_examples)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
