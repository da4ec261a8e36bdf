"""Adds to each entry of the reference the pages whose examples use it. All of these examples are run by the tests."""

import re
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
MOST = 4
_BLOCK = re.compile(r"^```(?:python|\{code-cell\} python)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PACKAGES = "rs|resolvent|analysis|estimators|extending|fields|plotting|regularizers|schemes|tableaux"


@cache
def code() -> dict[str, str]:
    """The code of each page that has some, tutorials last."""
    pages = sorted(DOCS.glob("*.md")) + sorted((DOCS / "tutorials").glob("*.md"))
    found = {page: "\n".join(_BLOCK.findall(page.read_text(encoding="utf-8"))) for page in pages}
    return {page.relative_to(DOCS).with_suffix("").as_posix(): text for page, text in found.items() if text}


def pages_with(name: str) -> list[str]:
    """Pages with `rs.Name` or `fields.Name` in their code, or with an import of the name."""
    word = re.escape(name)
    use = re.compile(rf"\b(?:{_PACKAGES})(?:\.\w+)*\.{word}\b|^from resolvent.* import .*\b{word}\b", re.MULTILINE)
    return [page for page, text in code().items() if use.search(text)]


def _append(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what not in ("class", "function", "exception"):
        return
    pages = pages_with(name.rsplit(".", 1)[1])[:MOST]
    if pages:
        lines += ["", "Examples: " + ", ".join(f":doc:`/{page}`" for page in pages) + ".", ""]


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _append, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
