"""The results as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = ("contender", "training step", "x explicit", "inference", "x explicit", "peak memory", "residual", "gradient")


def markdown(results: dict[str, Any]) -> str:
    """A table for each network, and how it was measured."""
    lines = [f"Measured with {results['machine']}.", ""]
    for record in results["rows"]:
        lines += _record(record)
    return "\n".join(lines).rstrip() + "\n"


def write_between_markers(page: Path, text: str) -> None:
    """Puts the text between the two markers of a page."""
    content = page.read_text()
    page.write_text(f"{content.split(BEGIN)[0]}{BEGIN}\n{text}{END}{content.split(END)[1]}")


def _record(record: dict[str, Any]) -> list[str]:
    title = f"### {record['row']}: {record['title']}, theta = {record['theta']:g}, residual {record['tolerance']:.0e}"
    rows = [_cells(name, entry, record) for name, entry in record["contenders"].items()]
    failed = [name for name in record["tried"] if name not in record["contenders"]]
    rows += [[name, "none of its settings reaches the tolerance", *[""] * (len(HEAD) - 2)] for name in failed]
    return [title, "", *_table(HEAD, rows), ""]


def _cells(name: str, entry: dict[str, Any], record: dict[str, Any]) -> list[str]:
    base = record["contenders"]["explicit"]["peak_bytes"]
    cells = [_label(name, entry, record)]
    for kind in ("train", "infer"):
        low, middle, high = entry[kind]["ratio"]
        cells += [_time(entry[kind]["seconds"][1]), f"{middle:.2f} ({low:.2f}-{high:.2f})"]
    cells.append(f"{entry['peak_bytes'] / base:.2f}x" if entry.get("peak_bytes") else "")
    cells += [f"{entry[key]:.0e}" if key in entry else "" for key in ("residual", "gradient_error")]
    return cells


def _label(name: str, entry: dict[str, Any], record: dict[str, Any]) -> str:
    """The name, with the setting that was the fastest."""
    fit = [each for each in record["tried"].get(name, []) if each.get("fit")]
    return f"{name} ({min(fit, key=lambda each: each['seconds'])['setting']})" if fit else name


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
