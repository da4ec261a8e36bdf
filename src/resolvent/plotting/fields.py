"""`vector_field`: vector fields in the plane, with trajectories and regions."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Polygon
from numpy.typing import NDArray
from torch import Tensor

from resolvent.equation.modes import refuse_transforms
from resolvent.fields import Time
from resolvent.plotting.style import BLUE, SKY, VERMILION, axes_or_new, paper_style

Limits = tuple[float, float]
Values = NDArray[np.float64]


def vector_field(
    field: Callable[[Time, Tensor], Tensor],
    ax: Axes | None = None,
    *,
    xlim: Limits = (-1.0, 1.0),
    ylim: Limits = (-1.0, 1.0),
    t: float = 0.0,
    trajectories: Tensor | None = None,
    regions: Sequence[Tensor] = (),
    arrows: int = 21,
    labels: tuple[str, str] = ("$y_1$", "$y_2$"),
) -> Axes:
    """Draws a field in the plane as arrows, with trajectories and regions that move with it.

    Arrows are drawn with the square root of their length, so that short ones stay visible.

    Arguments:
        field: F(t, y) on states (batch, 2).
        ax: where to draw; None makes a figure.
        xlim, ylim: limits of the two components.
        t: time at which the field is shown.
        trajectories: (T, batch, 2), as `Trajectory.states`; dots mark where they start.
        regions: the corners (n, 2) of each, in order of time; later ones are darker.
        arrows: the number of arrows in each direction.
        labels: of the two components.

    Returns:
        The axes.
    """
    refuse_transforms("vector_field")
    if trajectories is not None and (trajectories.dim() != 3 or trajectories.shape[-1] != 2):
        raise ValueError(f"trajectories must be (T, batch, 2), got {tuple(trajectories.shape)}.")
    x, y = np.meshgrid(_middles(xlim, arrows), _middles(ylim, arrows))
    u, v = _slopes(field, t, x, y)
    with paper_style():
        ax = axes_or_new(ax)
        for k, corners in enumerate(regions):
            shade = 0.15 + 0.55 * (k + 1) / len(regions)
            points = corners.detach().cpu().numpy()
            ax.add_patch(Polygon(points, facecolor=SKY, alpha=shade, edgecolor=BLUE, linewidth=0.5, zorder=1))
        ax.quiver(x, y, u, v, color="0.5", angles="xy", width=0.0025, pivot="middle", zorder=2)
        if trajectories is not None:
            path = trajectories.detach().cpu().numpy()
            ax.plot(path[:, :, 0], path[:, :, 1], color=BLUE, linewidth=0.9, zorder=3)
            ax.plot(path[0, :, 0], path[0, :, 1], "o", color=VERMILION, markersize=2.8, zorder=4)
        ax.set(xlim=xlim, ylim=ylim, xlabel=labels[0], ylabel=labels[1])
        return ax


def _middles(limits: Limits, count: int) -> Values:
    """The centres of equal cells, which keeps arrows off the frame."""
    ends = np.linspace(*limits, count + 1)
    return (ends[1:] + ends[:-1]) / 2


def _slopes(field: Callable[[Time, Tensor], Tensor], t: float, x: Values, y: Values) -> tuple[Values, Values]:
    parameters = getattr(field, "parameters", None)
    like = next(iter(parameters()), torch.empty(0)) if parameters is not None else torch.empty(0)
    points = torch.from_numpy(np.stack((x.ravel(), y.ravel()), axis=1)).to(like)
    with torch.no_grad():
        slopes = field(t, points)
    if slopes.shape != points.shape:
        raise ValueError(f"a field in the plane maps (batch, 2) to (batch, 2), got {tuple(slopes.shape)}.")
    length = torch.linalg.vector_norm(slopes, dim=1, keepdim=True)
    short = (slopes / length.sqrt().clamp(min=torch.finfo(slopes.dtype).tiny)).cpu().numpy()
    return short[:, 0].reshape(x.shape), short[:, 1].reshape(x.shape)
