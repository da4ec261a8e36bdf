"""Figures 6a, 7 and 8 of the paper: the data, the training, and the learned fields with their spectra."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import resolvent as rs
from resolvent import plotting
from resolvent.plotting import COLORS
from resolvent_lab.experiments.grid import grid
from resolvent_lab.experiments.regression.model import BAND, LAYERS, augment
from resolvent_lab.experiments.run import Run

_DASHES = ((0, (1, 1)), (0, (1, 2.5)), (0, (4, 2)), (0, (7, 3)), "solid")
_CURVES = {
    "loss": "error in the data",
    "divergence": r"divergence, weighted with $(t/T)^2$",
    "unweighted_divergence": "divergence, unweighted",
    "jacobian": "Jacobian",
}


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    return {
        "regression-data": _data(),
        "regression-training": _training(runs),
        "regression-iterations": _iterations(runs),
        "regression-fields": _panels(runs, _field, 1.7),
        "regression-spectra": _panels(runs, _spectrum, 1.7),
        "regression-spectra-stages": _panels(runs, partial(_spectrum, at_stages=True), 1.7),
    }


def _data() -> Figure:
    figure, ((ax,),) = grid(1, 1, 2.2)
    line, x = torch.linspace(-6, 6, 241), torch.linspace(-5, 5, 20)
    ax.plot(line, line.sin(), color="0.6", label="sin x")
    ax.plot(x, x.sin(), "o", color=COLORS[1], markersize=3, label="data")
    ax.set(xlabel="$x$", ylabel="$f(x)$")
    ax.legend()
    return figure


def _training(runs: Sequence[Run]) -> Figure:
    figure, rows = grid(2, 2, 2.4)
    for ax, (name, title) in zip((ax for row in rows for ax in row), _CURVES.items(), strict=True):
        for run in runs:
            color, dashes = _look(runs, run)
            curves = run.curves()
            ax.plot(curves["epoch"], curves[name], color=color, linestyle=dashes, linewidth=0.8)
        ax.set(title=title, xlabel="epoch", yscale="log" if name in ("loss", "jacobian") else "linear")
    for alpha, color in zip(_values(runs, "alpha_div"), COLORS, strict=False):
        rows[0][0].plot([], [], color=color, label=rf"$\alpha_{{div}}={alpha:g}$")
    for theta, dashes in zip(_values(runs, "theta"), _DASHES, strict=False):
        rows[0][0].plot([], [], color="black", linestyle=dashes, label=rf"$\theta={theta:g}$")
    figure.legend(loc="outside lower center", ncols=5)
    return figure


def _iterations(runs: Sequence[Run]) -> Figure:
    figure, rows = grid(2, 2, 2.2)
    kinds = {"lbfgs_iterations": "L-BFGS, as in the paper", "iterations": "the default solver, tighter tolerance"}
    for (left, right), (metric, title) in zip(rows, kinds.items(), strict=True):
        _lines(left, runs, metric, across="theta", each="alpha_div", label=r"\theta")
        _lines(right, runs, metric, across="alpha_div", each="theta", label=r"\alpha_{div}")
        left.set(title=title, ylabel="iterations per layer")
    rows[0][0].legend(title=r"$\alpha_{div}$", fontsize=6)
    rows[0][1].legend(title=r"$\theta$", fontsize=6)
    return figure


def _lines(ax: Axes, runs: Sequence[Run], metric: str, across: str, each: str, label: str) -> None:
    for k, value in enumerate(_values(runs, each)):
        chosen = [run for run in runs if getattr(run.config, each) == value]
        chosen.sort(key=lambda run: getattr(run.config, across))
        x = [getattr(run.config, across) for run in chosen]
        ax.plot(x, [run.metrics[metric] for run in chosen], "o-", color=COLORS[k], markersize=3, label=f"{value:g}")
    ax.set(xlabel=f"${label}$")


def _panels(runs: Sequence[Run], draw: Callable[[Run, Axes], None], height: float) -> Figure:
    thetas, alphas = _shown(runs, "theta"), _shown(runs, "alpha_div")
    figure, rows = grid(len(alphas), len(thetas), height)
    found = {tuple(getattr(run.config, name) for name in ("theta", "alpha_div")): run for run in runs}
    for alpha, row in zip(alphas, rows, strict=True):
        for theta, ax in zip(thetas, row, strict=True):
            if (theta, alpha) not in found:
                ax.set_axis_off()
                continue
            draw(found[theta, alpha], ax)
            ax.set_title(rf"$\theta={theta:g}$, $\alpha_{{div}}={alpha:g}$")
    return figure


@torch.no_grad()
def _field(run: Run, ax: Axes) -> None:
    """The field with trajectories, the line of starting points and its image, and the band around it at every layer."""
    block = run.network().block
    ((x, _),) = run.batches()
    line = torch.linspace(-6, 6, 121)
    upper, lower = (block.trajectory(augment(line, edge)).states for edge in (BAND, -BAND))
    bands = [torch.cat([upper[t], lower[t].flip(0)]) for t in range(LAYERS + 1)]
    plotting.vector_field(
        block.field, ax, xlim=(-7, 7), ylim=(-2, 2), trajectories=block.trajectory(x).states, regions=bands
    )
    image = block(augment(line))
    ax.plot(line, torch.zeros_like(line), color=COLORS[0], linewidth=1.5)
    ax.plot(image[:, 0], image[:, 1], color=COLORS[1], linewidth=1.5)


def _spectrum(run: Run, ax: Axes, at_stages: bool = False) -> None:
    block, theta = run.network().block, run.config.theta
    ((x, _),) = run.batches()

    def along(start: Tensor) -> Tensor:
        with torch.no_grad():
            states = block.trajectory(start).states
        points = (1 - theta) * states[:-1] + theta * states[1:] if at_stages else states
        return rs.analysis.jacobian_spectrum(block.field, torch.zeros(len(points)), points)

    test = augment(torch.linspace(-6, 6, 61))
    plotting.spectrum({"test": along(test), "train": along(x)}, block.scheme, ax, xlim=(-5, 3), ylim=(-2, 2))
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()  # the caption explains the colours for all panels


def _values(runs: Sequence[Run], name: str) -> list[float]:
    return sorted({getattr(run.config, name) for run in runs})


def _shown(runs: Sequence[Run], name: str) -> list[float]:
    """The smallest, the middle and the largest value, as in the paper."""
    values = _values(runs, name)
    return sorted({values[0], values[len(values) // 2], values[-1]})


def _look(runs: Sequence[Run], run: Run) -> tuple[str, Any]:
    """A colour for each alpha_div, and dashes for each theta."""
    color, dashes = (_values(runs, name).index(getattr(run.config, name)) for name in ("alpha_div", "theta"))
    return COLORS[color], _DASHES[dashes]
