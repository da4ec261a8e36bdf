"""Figures as files."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resolvent.plotting.style import paper_style


def save(figure: Figure | Axes, path: str | Path) -> tuple[Path, Path]:
    """Save a figure as PNG, for the screen, and as PDF, for print.

    Arguments:
        figure: a figure, or any of its axes.
        path: without a suffix; folders are made where they are missing.

    Returns:
        The paths of the PNG and of the PDF.
    """
    if isinstance(figure, Axes):
        found = figure.get_figure(root=True)
        if not isinstance(found, Figure):
            raise ValueError(f"the axes must belong to a figure to be saved, got {found!r}.")
        figure = found
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = path.with_name(path.name + ".png"), path.with_name(path.name + ".pdf")
    with paper_style():
        figure.savefig(png)
        # Without the date the file depends on the figure alone.
        figure.savefig(pdf, metadata={"CreationDate": None})
    return png, pdf
