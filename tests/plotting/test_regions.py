"""Stability regions: what is drawn is true, legible, and drawn where it was asked for."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Circle, Rectangle
from matplotlib.path import Path

from plotting.legibility import check, check_print_size
from resolvent import analysis, plotting, schemes
from resolvent.plotting.style import GREY, VERMILION
from resolvent.schemes import RungeKutta, Theta, tableaux
from schemes.catalogue import SCHEMES
from seeding import shifted


def is_grey(ax: Axes, z: complex) -> bool:
    """Whether a filled contour covers a point."""
    filled = [c for c in ax.collections if len(c.get_facecolor()) and to_hex(c.get_facecolor()[0]) == to_hex(GREY)]
    polygons = [Path(corners) for c in filled for path in c.get_paths() for corners in path.to_polygons()]
    return sum(polygon.contains_point((z.real, z.imag)) for polygon in polygons) % 2 == 1  # holes are polygons, too


def circles(ax: Axes) -> list[tuple[float, bool]]:
    """Radius, and whether hatched, of all circles about 0."""
    found = [patch for patch in ax.patches if isinstance(patch, Circle)]
    assert all(patch.center == (0, 0) for patch in found)
    return sorted({(float(patch.radius), patch.get_hatch() is not None) for patch in found})


def test_figure_of_five_thetas() -> None:
    thetas = (0.0, 0.25, 0.5, 0.75, 1.0)
    axes = plotting.theta_regions()
    assert [ax.get_title() for ax in axes] == [rf"$\theta={theta:.2f}$" for theta in thetas]
    rng = np.random.default_rng(shifted(0))
    for theta, ax in zip(thetas, axes, strict=True):
        for z in rng.uniform(-4, 4, 40) + 1j * rng.uniform(-4, 4, 40):
            growth = float(analysis.theta_stability(theta, z).abs())
            if abs(growth - 1) > 0.05:
                assert is_grey(ax, z) == (growth < 1), (theta, z)
        assert (1.0, True) in circles(ax)
        if theta > 0:
            assert (1 / theta, False) in circles(ax)
        else:
            whole = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
            assert [to_hex(patch.get_facecolor()) for patch in whole] == [to_hex(VERMILION)]
        assert len(ax.texts) >= 3  # labelled contours
    labels = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert len(labels) == 3
    check(axes[0].figure)
    check_print_size(axes[0].figure)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme(name: str) -> None:
    ax = plotting.stability_region(SCHEMES[name], resolution=121)
    assert "Re" in ax.get_xlabel()
    assert "Im" in ax.get_ylabel()
    check(ax.figure)
    check_print_size(ax.figure)


def test_region_of_a_scheme_of_two_halves_is_a_bar() -> None:
    ax = plotting.stability_region(schemes.VERLET, resolution=61)
    bar = [line for line in ax.lines if line.get_linewidth() == 3]
    assert len(bar) == 1
    assert np.abs(bar[0].get_ydata()) == pytest.approx(2, abs=1e-7)


def test_poles_are_marked() -> None:
    ax = plotting.stability_region(RungeKutta(tableaux.RADAU5), resolution=61)
    (poles,) = [line for line in ax.lines if line.get_marker() == "x"]
    denominator = np.roots([-1 / 60, 3 / 20, -3 / 5, 1])
    drawn = poles.get_xdata() + 1j * np.asarray(poles.get_ydata())
    np.testing.assert_allclose(
        np.sort_complex(np.round(drawn, 9)), np.sort_complex(np.round(denominator, 9)), atol=1e-8
    )
    assert all(ax.get_xlim()[0] < p.real < ax.get_xlim()[1] and abs(p.imag) < ax.get_ylim()[1] for p in drawn)


def test_axes_are_taken_and_given_back() -> None:
    grid = plt.figure(layout="constrained", figsize=(7, 2.2)).subplots(1, 5)
    axes = plotting.theta_regions(axes=grid, resolution=61)
    assert list(axes) == list(grid)
    assert plotting.stability_region(Theta(0.3), grid[0], resolution=61) is grid[0]
    assert len(plt.get_fignums()) == 1
    with pytest.raises(ValueError, match="2 panels and takes as many axes, got 5"):
        plotting.theta_regions((0.5, 1.0), grid)


def test_limits_and_choices() -> None:
    ax = plotting.stability_region(
        Theta(0.5), xlim=(-3, 1), ylim=(-2, 2), contractive=False, legend=False, resolution=61
    )
    assert ax.get_xlim() == (-3, 1)
    assert ax.get_ylim() == (-2, 2)
    assert circles(ax) == []
    assert ax.get_legend() is None


def test_style_is_not_left_behind() -> None:
    before = dict(plt.rcParams)
    plotting.theta_regions(resolution=41)
    assert dict(plt.rcParams) == before


def test_palette_can_be_told_apart() -> None:
    """Also in grey: no two colours have the same lightness within a fiftieth, except by intent of the palette."""
    assert len(set(plotting.COLORS)) == 7
    distances = [
        math.dist(to_rgb(a), to_rgb(b)) for i, a in enumerate(plotting.COLORS) for b in plotting.COLORS[i + 1 :]
    ]
    assert min(distances) > 0.25
