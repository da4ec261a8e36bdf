"""Mathematics by the copy of KaTeX in _static/katex, so that pages need no network connection."""

import html
from typing import Any

from docutils import nodes
from sphinx.util.math import get_node_equation_number


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(f'<span class="math notranslate nohighlight">{html.escape(node.astext())}</span>')
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.math_block) -> None:
    number = f'<span class="eqno">({get_node_equation_number(writer, node)})</span>' if node.get("number") else ""
    writer.body.append(f'<div class="math notranslate nohighlight">{number}{html.escape(node.astext())}</div>\n')
    raise nodes.SkipNode


def _add_files(app: Any, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    """Loads KaTeX only where there is something to render."""
    if tree is not None and next(tree.findall(lambda node: isinstance(node, nodes.math | nodes.math_block)), None):
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/katex.min.js", loading_method="defer")
        app.add_js_file("render-math.js", loading_method="defer")


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("katex", (_inline, None), (_display, None))
    app.connect("html-page-context", _add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
