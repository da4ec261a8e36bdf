"""The HTML of the report: its style and its pieces. It needs no other file and no network connection."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

_STYLE = """:root{color-scheme:light dark;--text:#222;--soft:#5a5a5a;--back:#fff;--line:#ddd;--panel:#f6f7f8;
--good:#00694d;--bad:#b3260a;--bad-back:#fdf3f0;--accent:#0b62a4}
@media (prefers-color-scheme:dark){:root{--text:#e4e4e4;--soft:#a8a8a8;--back:#16181b;--line:#3a3d41;--panel:#202327;
--good:#4fc9a0;--bad:#ff8a70;--bad-back:#33201c;--accent:#79b8ec}}
*{box-sizing:border-box}html{scroll-padding-top:3.5rem}
body{font:16px/1.55 system-ui,sans-serif;margin:0;color:var(--text);background:var(--back)}
main{max-width:70rem;margin:0 auto;padding:0 1rem 4rem}
nav{position:sticky;top:0;z-index:1;background:var(--back);border-bottom:1px solid var(--line);overflow-x:auto;
white-space:nowrap;padding:.6rem 1rem}nav a{margin-right:1.2rem}
a{color:var(--accent)}h1{font-size:1.7rem;line-height:1.25}
h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1.2rem}
.lead{font-size:1.15rem}.note{border-left:4px solid #c98b00;padding-left:.8rem}.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:.8rem;padding:0;list-style:none}
.cards li{background:var(--panel);border-radius:.5rem;padding:.7rem .9rem}
details{background:var(--panel);border-radius:.5rem;padding:.5rem .9rem;margin:1rem 0}
summary{cursor:pointer;font-weight:600}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;margin:.7rem 0}
td,th{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
.text td,.text th{text-align:left}.text td:first-child,.text td:nth-child(2){min-width:14rem}
.reproduced td:last-child,.holds-shortened td:last-child{color:var(--good)}
.not-reproduced td:last-child{color:var(--bad);font-weight:bold}.not-reproduced{background:var(--bad-back)}
.not-run,.not-judged-shortened{color:var(--soft)}
figure{margin:1.5rem 0}img{max-width:100%;height:auto;display:block;margin:0 auto;background:#fff;border-radius:.4rem}
figcaption{text-align:center;font-size:.85rem;color:var(--soft);margin-top:.4rem}
@media (max-width:40rem){h1{font-size:1.35rem}.lead{font-size:1.05rem}main{padding:0 .7rem 3rem}}"""


def page(title: str, links: Mapping[str, str], body: str) -> str:
    """A whole page. `links` are names by anchor, for the navigation."""
    places = "".join(f'<a href="#{anchor}">{html.escape(name)}</a>' for anchor, name in links.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{html.escape(title)}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f'<body><nav aria-label="experiments">{places}</nav><main id="top"><h1>{html.escape(title)}</h1>{body}</main>'
        "</body></html>\n"
    )


def folded(title: str, content: str, is_open: bool = False) -> str:
    """Content that a click on its title shows or hides."""
    return f"<details{' open' if is_open else ''}><summary>{html.escape(title)}</summary>{content}</details>"


def table(rows: Sequence[Sequence[str]], kind: str = "", kinds: Sequence[str] = ()) -> str:
    """The first row is the header; `kinds` are the CSS classes of the other rows."""
    header, *body = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    lines = [f'<tr class="{name}">{row}</tr>' for name, row in zip(kinds or [""] * len(body), body, strict=True)]
    head = header.replace("td>", "th>")
    return f'<div class="scroll"><table class="{kind}"><tr>{head}</tr>{"".join(lines)}</table></div>'


def picture(path: Path, captions: Mapping[str, str]) -> str:
    """A figure with its caption; the image is part of the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem.replace("-", " "))
    caption = html.escape(captions.get(path.stem, name))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
