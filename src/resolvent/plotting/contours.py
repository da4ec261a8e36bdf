"""Contours with labels that do not overlap each other, the frame or other marks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

# Fractions of the axes: smaller contours have no room for a label and are not drawn; the distance of labels from the
# frame.
_SMALLEST, _MARGIN = 0.16, 0.09

Values = NDArray[np.float64]


def draw_contours(
    ax: Axes,
    x: Values,
    y: Values,
    values: Values,
    labels: Mapping[float, str],
    heavy: float,
    avoid: Sequence[complex] = (),
) -> None:
    """Draws the contours of values on a grid, with a label on each.

    Arguments:
        ax: where to draw.
        x, y: (n,) and (m,), the grid.
        values: (m, n).
        labels: by level, in ascending order.
        heavy: the level that is drawn heavier, and drawn at any size.
        avoid: points x + iy that labels avoid.
    """
    levels = [level for level in labels if values.min() < level < values.max()]
    if not levels:
        return
    trial = ax.contour(x, y, values, levels=levels)
    longest: dict[float, Values] = {}
    for level, path in zip(levels, trial.get_paths(), strict=True):
        piece = max(map(np.asarray, path.to_polygons(closed_only=False)), key=_extent, default=np.zeros((1, 2)))
        if _extent(piece) > _SMALLEST * float(x[-1] - x[0]):
            longest[level] = _filled_in(piece)
    trial.remove()
    kept = [level for level in levels if level in longest or level == heavy]
    if not kept:
        return
    widths = [1.1 if level == heavy else 0.5 for level in kept]
    lines = ax.contour(x, y, values, levels=kept, colors="black", linestyles="solid", linewidths=widths, zorder=2)
    places = _places(list(longest.values()), x, y, avoid)
    ax.clabel(lines, fmt=dict(labels), fontsize=6.5, inline_spacing=2, manual=places)


def _extent(points: Values) -> float:
    return float(np.ptp(points, axis=0).max())


def _filled_in(points: Values) -> Values:
    """The same line with more points: a straight line has only its two ends."""
    length = np.concatenate(([0.0], np.hypot(*np.diff(points, axis=0).T).cumsum()))
    at = np.linspace(0, length[-1], 200)
    return np.stack([np.interp(at, length, coordinate) for coordinate in points.T], axis=1)


def _places(contours: list[Values], x: Values, y: Values, avoid: Sequence[complex]) -> list[tuple[float, float]]:
    """A point on each contour, in the frame and far from the others and from the points in `avoid`."""
    low, high = np.array([x[0], y[0]]), np.array([x[-1], y[-1]])
    margin = _MARGIN * (high - low)
    taken = [np.array([z.real, z.imag]) for z in avoid]
    places = []
    for points in sorted(contours, key=_extent):  # short ones first: they have the fewest candidates
        inside = points[((points > low + margin) & (points < high - margin)).all(axis=1)]
        if len(inside):
            distance = np.min([np.hypot(*(inside - place).T) for place in taken], axis=0, initial=np.inf)
            best = inside[distance.argmax()]
            taken.append(best)
            places.append((float(best[0]), float(best[1])))
    return places
