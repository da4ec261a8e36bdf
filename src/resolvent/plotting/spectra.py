"""Spectra over stability regions."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from resolvent.equation.modes import refuse_transforms
from resolvent.plotting.regions import Limits, stability_region
from resolvent.plotting.style import BLUE, GREEN, VERMILION, axes_or_new, legend_under, paper_style
from resolvent.schemes import Scheme

Values = NDArray[np.complex128]

_MARKERS = ((BLUE, "o"), (VERMILION, "^"), (GREEN, "s"))


def spectrum(
    eigenvalues: Tensor | Mapping[str, Tensor],
    scheme: Scheme,
    ax: Axes | None = None,
    *,
    h: float = 1.0,
    xlim: Limits | None = None,
    ylim: Limits | None = None,
    resolution: int = 301,
) -> Axes:
    """Draws the eigenvalues of a field, times the step, over the stability region of a scheme.

    Arguments:
        eigenvalues: complex, of any shape, such as from `jacobian_spectrum`; or several of them by name.
        scheme: of the library.
        ax: where to draw; None makes a figure.
        h: step, by which the eigenvalues are multiplied.
        xlim, ylim: limits of Re z and Im z; None shows all eigenvalues.
        resolution: points in each direction.

    Returns:
        The axes.
    """
    refuse_transforms("spectrum")
    named = dict(eigenvalues) if isinstance(eigenvalues, Mapping) else {"": eigenvalues}
    if not 1 <= len(named) <= len(_MARKERS):
        raise ValueError(f"1 to {len(_MARKERS)} named spectra can be distinguished in one figure, got {len(named)}.")
    points = {name: h * values.detach().cpu().flatten().numpy() for name, values in named.items()}
    together = np.concatenate(list(points.values()))
    if together.size == 0 or not np.isfinite(together).all():
        raise ValueError(f"eigenvalues must be finite and at least one, got {together.size} of them.")
    with paper_style():
        ax = axes_or_new(ax)
        around = _window(together)
        xlim, ylim = xlim or around[0], ylim or around[1]
        stability_region(scheme, ax, xlim=xlim, ylim=ylim, legend=False, resolution=resolution)
        for z, (color, marker) in zip(points.values(), _MARKERS, strict=False):
            ax.scatter(z.real, z.imag, s=11, c=color, marker=marker, edgecolors="white", linewidths=0.3, zorder=5)
        if "" not in named:
            shown = zip(named, _MARKERS, strict=False)
            handles = [Line2D([], [], color=c, marker=m, linestyle="", markersize=4, label=n) for n, (c, m) in shown]
            legend_under(ax, handles, columns=len(named))
        return ax


def _window(z: Values) -> tuple[Limits, Limits]:
    """Limits that contain all values and most of the unit disc, and are not too narrow."""
    low = np.minimum([z.real.min(), z.imag.min()], -1.5)
    high = np.maximum([z.real.max(), z.imag.max()], 1.5)
    centre, half = (low + high) / 2, 0.56 * (high - low)
    half = np.maximum(half, half.max() / 3)
    (left, bottom), (right, top) = centre - half, centre + half
    return (float(left), float(right)), (float(bottom), float(top))
