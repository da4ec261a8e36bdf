"""Sphinx configuration."""

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
suppress_warnings = ["myst.xref_missing"]
