"""Phase diagrams of the oscillator under a scheme."""

import math
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes

from resolvent.analysis.stability import OSCILLATOR_SCHEMES, oscillator_matrix
from resolvent.plotting.style import BLUE, PAGE, VERMILION, axes_or_new, legend_below, panels, paper_style
from resolvent.schemes import Scheme


def phase_diagram(
    scheme: Scheme,
    ax: Axes | None = None,
    *,
    omega: float = 50.0,
    h: float = 0.004,
    periods: float = 2.0,
    start: tuple[float, float] = (0.0, 1.0),
) -> Axes:
    """Draws the orbit of the oscillator y' = -omega^2 z, z' = y computed by a scheme, over the exact one.

    In the coordinates (z, y/omega) the exact orbit is a circle.

    Arguments:
        scheme: a one-step scheme.
        ax: where to draw; None makes a figure.
        omega: frequency.
        h: step; the default makes 31 steps per period at omega = 50, h omega = 0.2.
        periods: how long, in periods 2 pi / omega.
        start: the initial (y/omega, z).

    Returns:
        The axes.
    """
    if h <= 0 or omega <= 0 or periods <= 0:
        raise ValueError(f"h, omega and periods must be positive, got {h}, {omega} and {periods}.")
    M = oscillator_matrix(scheme, h, omega)
    state = torch.tensor([start[0] * omega, start[1]], dtype=M.dtype)
    orbit = [state]
    for _ in range(round(periods * 2 * math.pi / (h * omega))):
        orbit.append(M @ orbit[-1])
    y, z = torch.stack(orbit).unbind(1)
    angle = torch.linspace(0, 2 * math.pi, 200)
    radius = math.hypot(*start)
    with paper_style():
        ax = axes_or_new(ax, height=3.0)
        ax.plot(radius * angle.cos(), radius * angle.sin(), color="0.8", linewidth=3, label="exact")
        ax.plot(z, y / omega, color=BLUE, linewidth=0.8, marker=".", markersize=3, label="computed")
        ax.plot(start[1], start[0], "o", color=VERMILION, markersize=4, label="start")
        ax.set(aspect="equal", xlabel="$z$", ylabel=r"$y/\omega$")
        return ax


def phase_diagrams(
    axes: Sequence[Axes] | None = None, *, omega: float = 50.0, h: float = 0.004, periods: float = 2.0
) -> tuple[Axes, ...]:
    """Draws the phase diagrams of forward Euler, the trapezoidal rule, backward Euler and Verlet side by side.

    The first spirals out, the third in, and the other two stay on closed curves.

    Arguments:
        axes: four, or None for a new figure the width of a page.
        omega: frequency.
        h: step.
        periods: how long, in periods 2 pi / omega.

    Returns:
        The axes.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, Figure 2.
    """
    with paper_style():
        row = panels(axes, len(OSCILLATOR_SCHEMES), PAGE, 2.6)
        for ax, (name, scheme) in zip(row, OSCILLATOR_SCHEMES.items(), strict=True):
            phase_diagram(scheme, ax, omega=omega, h=h, periods=periods)
            ax.set_title(name)
            ax.set_box_aspect(1)
            if ax is not row[0]:
                ax.set_ylabel("")
        reach = [max(1.15, 1.08 * max(map(abs, ax.dataLim.extents))) for ax in row]
        for ax, limit in zip(row, reach, strict=True):
            ax.set(xlim=(-limit, limit), ylim=(-limit, limit))
            ax.locator_params(nbins=4)
        title = rf"$\omega={omega:g}$, $h={h:g}$, $h\omega={h * omega:g}$, {periods:g} periods"
        handles, _ = row[0].get_legend_handles_labels()
        legend_below(row, handles, title)
        return tuple(row)
