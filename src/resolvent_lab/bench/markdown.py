"""Tables in Markdown, and pages that have a place for them."""

from collections.abc import Sequence
from pathlib import Path

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def write_between_markers(page: Path, text: str) -> None:
    """Replaces the text between the two markers of a page."""
    content = page.read_text()
    if BEGIN not in content or END not in content:
        raise ValueError(f"{page} has no place for a table: mark it by the lines {BEGIN} and {END}.")
    page.write_text(f"{content.split(BEGIN)[0]}{BEGIN}\n{text}{END}{content.split(END)[1]}")


def time_of(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def spread(values: Sequence[float] | None) -> str:
    """The middle of three values, with the others in brackets."""
    if values is None:
        return ""
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"
