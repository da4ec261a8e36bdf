"""Sphinx configuration."""

import os
import sys
from pathlib import Path
from typing import Any

import resolvent

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

project = "resolvent"
author = "The resolvent developers"
release = resolvent.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "katex", "reference_examples"]
exclude_patterns = ["_static", "_extensions"]
html_theme = "furo"
html_title = "resolvent"
html_static_path = ["_static"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
highlight_language = "none"  # for blocks that name no language
html_css_files = ["site.css"]
html_math_renderer = "katex"

# Tutorials are executed when the documentation is built. Their outputs are kept in build/ until their code changes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "tutorials")
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_merge_streams = True

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # the summaries of results are written by a program, in parts
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
