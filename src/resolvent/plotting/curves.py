"""`training_curves`: quantities recorded during training."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from resolvent.equation.modes import refuse_transforms
from resolvent.plotting.style import COLORS, axes_or_new, paper_style

_DASHES = ("-", "--", "-.", ":")


def training_curves(
    curves: Mapping[str, Sequence[float] | Tensor],
    ax: Axes | None = None,
    *,
    xlabel: str = "epoch",
    ylabel: str = "loss",
    log: bool = True,
) -> Axes:
    """Draws quantities recorded during training.

    Arguments:
        curves: by name, (epochs,) each; or (seeds, epochs), drawn as the median and the range of all seeds.
        ax: where to draw; None makes a figure.
        xlabel: the horizontal quantity, with its unit.
        ylabel: the recorded quantity, with its unit.
        log: whether the vertical axis is logarithmic; raises if a value is not positive.

    Returns:
        The axes.
    """
    refuse_transforms("training_curves")
    if not curves:
        raise ValueError("there is nothing to draw: curves is empty.")
    with paper_style():
        ax = axes_or_new(ax, height=2.4)
        for k, (name, values) in enumerate(curves.items()):
            runs = np.atleast_2d(torch.as_tensor(values, dtype=torch.float64).detach().cpu().numpy())
            if log and not (runs > 0).all():
                raise ValueError(
                    f"{name!r} holds values that are not positive, down to {runs.min():g}: take log=False."
                )
            epochs = np.arange(1, runs.shape[1] + 1)
            # Curves differ in colour and dashes, so there can be more curves than colours.
            color, dashes = COLORS[k % len(COLORS)], _DASHES[k % len(_DASHES)]
            ax.plot(epochs, np.median(runs, axis=0), label=name, color=color, linestyle=dashes)
            if len(runs) > 1:
                ax.fill_between(epochs, runs.min(0), runs.max(0), color=color, alpha=0.2, linewidth=0)
        ax.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
        ax.margins(x=0.01)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), handlelength=2.4)
        return ax
