"""Sphinx configuration."""

from typing import Any

import resolvent

project = "resolvent"
author = "The resolvent developers"
release = resolvent.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["results"]
html_theme = "furo"
html_title = "resolvent"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_custom_sections = [("Arguments", "params_style")]

SECTIONS = ("Arguments:", "Returns:", "Attributes:", "Raises:")


def plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: what reStructuredText would take for markup is escaped, and formulas, which stand
    indented or as tables, become literal blocks."""
    result: list[str] = []
    section = literal = False
    for line in lines:
        table = line.startswith("|") and line.endswith("|")
        if line.strip() in SECTIONS:
            section, literal = True, False
        elif line and not line.startswith(" ") and not table:
            section = literal = False
        if not section and (table or line.startswith("    ")):
            if not literal:
                result += ["", "::", ""]
            literal = True
            result.append(line if line.startswith(" ") else f"    {line}")
        elif literal and not line:
            result.append(line)
        else:
            result.append(line.replace("*", r"\*").replace("|", r"\|").replace("`", "``"))
    lines[:] = result


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text, priority=400)
