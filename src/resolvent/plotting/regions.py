"""Stability regions in the complex plane, with contour labels that do not overlap."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch, Rectangle
from numpy.typing import NDArray

from resolvent.analysis.facts import contractive_radius, stability_interval
from resolvent.analysis.growth import amplification
from resolvent.plotting.style import (
    BLUE,
    GREY,
    PAGE,
    VERMILION,
    axes_or_new,
    legend_below,
    legend_under,
    panels,
    paper_style,
)
from resolvent.schemes import Scheme, Theta

Limits = tuple[float, float]

_LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0)
_HATCH = "//////"


def stability_region(
    scheme: Scheme,
    ax: Axes | None = None,
    *,
    xlim: Limits | None = None,
    ylim: Limits | None = None,
    levels: Sequence[float] = _LEVELS,
    contractive: bool | None = None,
    unit_disc: bool = False,
    legend: bool = True,
    resolution: int = 301,
) -> Axes:
    """Draws the stability region of a scheme in the plane of z = h lambda.

    The region in which a step does not amplify is grey, with labelled contours of the amplification, |R(z)| or the
    largest root; the disc in which fixed-point iteration contracts is red; poles are crosses. A partitioned scheme is
    stable only on a part of the imaginary axis, which is drawn as a bar.

    Arguments:
        scheme: of the library.
        ax: where to draw; None makes a figure.
        xlim, ylim: limits of Re z and Im z; None chooses them from the scheme.
        levels: of the contours; 1 is drawn heavier.
        contractive: whether to draw the red disc; None draws it if there is an equation to solve.
        unit_disc: whether to hatch the unit disc, which contains the spectrum of a 1-Lipschitz field at h = 1.
        legend: whether to explain the colours.
        resolution: points in each direction.

    Returns:
        The axes.
    """
    with paper_style():
        ax = axes_or_new(ax)
        reach = _reach(scheme)
        xlim, ylim = xlim or (-reach, reach), ylim or (-reach, reach)
        _draw_growth(ax, scheme, xlim, ylim, levels, resolution)
        radius = contractive_radius(scheme)
        contractive = math.isfinite(radius) if contractive is None else contractive
        if contractive:
            _draw_contractive(ax, radius, xlim, ylim)
        if unit_disc:
            ax.add_patch(Circle((0, 0), 1, fill=False, hatch=_HATCH, linewidth=0.6, zorder=3))
        _draw_landmarks(ax, scheme)
        ax.set(xlim=xlim, ylim=ylim, aspect="equal", xlabel=r"$\mathrm{Re}\,z$", ylabel=r"$\mathrm{Im}\,z$")
        if legend:
            legend_under(ax, _handles(scheme, contractive, unit_disc))
        return ax


def theta_regions(
    thetas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    axes: Sequence[Axes] | None = None,
    *,
    limit: float = 4.5,
    resolution: int = 301,
) -> tuple[Axes, ...]:
    """Draws the stability regions of theta layers side by side, by `stability_region`.

    Grey is |R(z)| <= 1, red the disc |z| < 1/theta in which the layer's fixed point is contractive (the whole plane for
    theta = 0, where nothing is solved). The hatched unit disc contains the spectrum of a 1-Lipschitz field at h = 1.

    Arguments:
        thetas: one panel each.
        axes: one per theta, or None for a new figure the width of a page.
        limit: of Re z and Im z.
        resolution: points in each direction.

    Returns:
        The axes.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, Figure 3.
    """
    with paper_style():
        row = panels(axes, len(thetas), PAGE, 0.75 + PAGE / max(len(thetas), 2))
        for theta, ax in zip(thetas, row, strict=True):
            limits = {"xlim": (-limit, limit), "ylim": (-limit, limit)}
            stability_region(
                Theta(theta), ax, **limits, contractive=True, unit_disc=True, legend=False, resolution=resolution
            )
            ax.set_title(rf"$\theta={theta:.2f}$")
            ax.locator_params(nbins=5, integer=True)
            if ax is not row[0]:
                ax.set(ylabel="", yticklabels=[])
        legend_below(row, _handles(Theta(1.0), contractive=True, unit_disc=True))
        return tuple(row)


def _draw_growth(
    ax: Axes, scheme: Scheme, xlim: Limits, ylim: Limits, levels: Sequence[float], resolution: int
) -> None:
    x, y = np.linspace(*xlim, resolution), np.linspace(*ylim, resolution)
    z = torch.from_numpy(x[None, :] + 1j * y[:, None])
    # Near a pole the values are huge; contours of their logarithm are more accurate.
    growth = amplification(scheme, z).clamp(1e-6, 1e6).log().numpy()
    logs = sorted(math.log(level) for level in levels)
    if scheme.acts_on_halves:
        logs = [level for level in logs if level != 0]  # the region is the bar, and has no interior
    else:
        # The region includes an amplification of 1 up to rounding.
        ax.contourf(x, y, growth, levels=[-np.inf, 1e-9], colors=[GREY], zorder=0)
    landmarks = [0j, *scheme.linear_form.poles.tolist(), *_bar(scheme)]
    draw_contours(ax, x, y, growth, {level: f"{math.exp(level):g}" for level in logs}, heavy=0.0, avoid=landmarks)


def _draw_contractive(ax: Axes, radius: float, xlim: Limits, ylim: Limits) -> None:
    if math.isfinite(radius):
        ax.add_patch(Circle((0, 0), radius, facecolor=VERMILION, alpha=0.3, linewidth=0, zorder=1))
        ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=VERMILION, linewidth=0.9, zorder=1))
    else:
        corner, width, height = (xlim[0], ylim[0]), xlim[1] - xlim[0], ylim[1] - ylim[0]
        ax.add_patch(Rectangle(corner, width, height, facecolor=VERMILION, alpha=0.3, linewidth=0, zorder=1))


def _draw_landmarks(ax: Axes, scheme: Scheme) -> None:
    """Draws the axes, the poles, and the stable part of the imaginary axis for partitioned schemes."""
    ax.axhline(0, color="0.4", linewidth=0.4, zorder=1.5)
    ax.axvline(0, color="0.4", linewidth=0.4, zorder=1.5)
    poles = scheme.linear_form.poles.numpy()
    ax.plot(poles.real, poles.imag, "x", color="black", markersize=4, markeredgewidth=0.9, zorder=4)
    bar = np.array(_bar(scheme))
    ax.plot(bar.real, bar.imag, color=BLUE, linewidth=3, solid_capstyle="butt", zorder=3)


def _handles(scheme: Scheme, contractive: bool, unit_disc: bool) -> list[Artist]:
    stable = r"stable, $|R(z)|\leq 1$" if scheme.one_step else "stable"
    handles: list[Artist] = [Patch(facecolor=GREY, label=stable)]
    if scheme.acts_on_halves:
        handles = [Line2D([], [], color=BLUE, linewidth=3, label="stable")] if _bar(scheme) else []
    if contractive:
        handles.append(Patch(facecolor=(VERMILION, 0.3), edgecolor=VERMILION, label="fixed point contractive"))
    if unit_disc:
        handles.append(Patch(fill=False, hatch=_HATCH, linewidth=0.6, label="spectrum of a 1-Lipschitz field"))
    return handles


def _bar(scheme: Scheme) -> tuple[complex, ...]:
    """The ends of the stable interval of a partitioned scheme; empty for other schemes."""
    end = stability_interval(scheme, 1j) if scheme.acts_on_halves else 0.0
    return (complex(0, -end), complex(0, end)) if end > 0 else ()


def _reach(scheme: Scheme) -> float:
    """The distance from 0 that the default limits show."""
    ends = (stability_interval(scheme, -1.0), stability_interval(scheme, 1j), contractive_radius(scheme))
    poles = scheme.linear_form.poles.abs().tolist()
    return max(3.0, *(1.15 * end for end in ends if math.isfinite(end)), *(1.6 * pole for pole in poles))


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
