"""A grid of panels as wide as a page."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resolvent import plotting


def grid(rows: int, columns: int, height: float, sharey: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """A figure with panels of this height in inches, and the panels row by row."""
    with plotting.paper_style():
        figure = Figure(figsize=(plotting.PAGE, rows * height), layout="constrained")
        axes = np.atleast_2d(figure.subplots(rows, columns, sharey=sharey, squeeze=False))
    return figure, [list(row) for row in axes]
