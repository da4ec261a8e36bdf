"""The style of all figures, applied only while they are drawn, and `save`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import offset_copy

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, BLACK = (
    *("#0072B2", "#D55E00", "#009E73", "#E69F00"),
    *("#56B4E9", "#CC79A7", "#000000"),
)
COLORS = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, BLACK)
"""The palette of Okabe and Ito, distinguishable with any colour vision."""

GREY = "0.82"
COLUMN, PAGE = 3.4, 7.0
"""Widths in inches of a column and of a page of a paper; the font sizes are chosen for them."""

_LABEL_HEIGHT = 27  # points from an axis to below its label

_STYLE: Any = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.2,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}


@contextmanager
def paper_style() -> Iterator[None]:
    """A context that applies the style of the figures."""
    interactive = mpl.is_interactive()
    try:
        with mpl.rc_context(_STYLE):
            try:
                yield
            finally:
                interactive = mpl.is_interactive()
    finally:
        # In a notebook the first figure turns interactive mode on. Turned off again, later figures would not be shown.
        mpl.interactive(interactive)


def axes_or_new(ax: Axes | None, width: float = COLUMN, height: float | None = None) -> Axes:
    """The axes, or those of a new figure of this size in inches."""
    return panels(None if ax is None else [ax], 1, width, 0.8 * width if height is None else height)[0]


def panels(axes: Sequence[Axes] | None, count: int, width: float, height: float) -> list[Axes]:
    """The axes, or those of a new figure with a row of this many panels."""
    if axes is None:
        grid = plt.subplots(1, count, figsize=(width, height), layout="constrained", squeeze=False)[1]
        return list(grid[0])
    if len(axes) != count:
        raise ValueError(f"the figure has {count} panels and takes as many axes, got {len(axes)}.")
    return list(axes)


def legend_below(axes: Sequence[Axes], handles: Sequence[Artist], title: str | None = None) -> None:
    """One legend for all panels, below them if the figure has a constrained layout, which reserves the space."""
    figure = axes[0].figure
    constrained = isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)
    place: Literal["outside lower center", "lower center"] = "outside lower center" if constrained else "lower center"
    figure.legend(handles=list(handles), loc=place, ncols=len(handles), title=title)


def legend_under(ax: Axes, handles: Sequence[Artist], columns: int = 1) -> None:
    """A legend below the label of the horizontal axis, for axes of any size."""
    below = offset_copy(ax.transAxes, fig=ax.get_figure(root=True), y=-_LABEL_HEIGHT, units="points")
    ax.legend(handles=list(handles), loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=columns)


def save(figure: Figure | Axes, path: str | Path) -> tuple[Path, Path]:
    """Saves a figure as PNG, for the screen, and as PDF, for print.

    Arguments:
        figure: a figure, or any of its axes.
        path: without a suffix; missing folders are created.

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
        # Without the date, so that the file depends only on the figure.
        figure.savefig(pdf, metadata={"CreationDate": None})
    return png, pdf
