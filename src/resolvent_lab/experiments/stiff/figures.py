"""Figures 6b and 9 of the paper: the data, and the trajectory from zero through the networks."""

from collections.abc import Sequence
from typing import cast

import torch
from matplotlib.figure import Figure

from resolvent.plotting import COLORS
from resolvent_lab.experiments.grid import grid
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.stiff.model import (
    LAYERS,
    STEP,
    Stiff,
    StiffConfig,
    predicted_slope,
)
from resolvent_lab.problems import HORIZON, RATE
from resolvent_lab.problems import stiff_solution as exact


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    return {"stiff-data": _data(runs[0]), "stiff-trajectories": _trajectories(runs), "stiff-slopes": _slopes(runs)}


def _data(run: Run) -> Figure:
    figure, ((ax,),) = grid(1, 1, 2.4)
    t, z = torch.meshgrid(torch.linspace(0, 4, 25), torch.linspace(-0.5, 1.5, 17), indexing="xy")
    slope = -RATE * (z - t.clamp(max=HORIZON).cos())
    length = (1 + slope.square()).sqrt()
    ax.quiver(t, z, 1 / length, slope / length, color="0.75", angles="xy", width=0.0018, pivot="middle")
    ends = STEP * torch.arange(0, LAYERS + 0.01, 0.1)
    for starts, states in run.batches():
        times = starts + ends[:, None]
        ax.plot(times, exact(times, starts, states[0]), color=COLORS[0], linewidth=0.4)
        ax.plot(starts, states[0], "o", color=COLORS[1], markersize=2)
    ax.set(xlabel="$t$", ylabel="$z$")
    return figure


def _trajectories(runs: Sequence[Run]) -> Figure:
    by_points = _by_points(runs)
    figure, (top, bottom) = grid(2, len(by_points), 2.2, sharey=True)
    coarse, fine = torch.linspace(0, HORIZON, LAYERS + 1), torch.linspace(0, HORIZON, 401)
    zero = torch.zeros(())
    for (points, chosen), discrete, continuous in zip(by_points.items(), top, bottom, strict=True):
        dots = coarse[LAYERS // points :: LAYERS // points]
        for ax in (discrete, continuous):
            ax.plot(fine, exact(fine, zero, zero), color="0.6", linewidth=2, label="exact")
            ax.plot(dots, exact(dots, zero, zero), "o", color="0.4", markersize=3)
        for run in chosen:
            network = cast(Stiff, run.network())
            color, label = COLORS[round(2 * run.config.theta)], rf"$\theta={run.config.theta:g}$"
            discrete.plot(coarse, network.discrete(), color=color, label=label, linewidth=0.9)
            path = network.continuous(len(fine) - 1)
            continuous.plot(fine, path, color=color, label=label, linewidth=0.9)
        discrete.set(title=f"{points} points", ylim=(-0.7, 1.7))
        continuous.set(xlabel="$t$")
    top[0].set_ylabel("layers")
    bottom[0].set_ylabel("continuous")
    top[0].legend(fontsize=6)
    return figure


def _slopes(runs: Sequence[Run]) -> Figure:
    """The mean slope of each layer's field, and the prediction of the theory."""
    by_points = _by_points(runs)
    figure, (row,) = grid(1, len(by_points), 2.0, sharey=True)
    for (points, chosen), ax in zip(by_points.items(), row, strict=True):
        for run in chosen:
            label = rf"$\theta={run.config.theta:g}$"
            color = COLORS[round(2 * run.config.theta)]
            ax.plot(range(LAYERS), run.metrics["slopes"], ".-", color=color, label=label)
            ax.axhline(predicted_slope(run.config.theta), color=color, linestyle="--", linewidth=0.7)
        ax.set(title=f"{points} points", xlabel="layer", ylim=(-25.5, -14.5))
    row[0].set_ylabel("mean slope")
    row[0].legend(fontsize=6)
    return figure


def _by_points(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """The runs by number of training points."""
    grouped: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (cast(StiffConfig, run.config).points, run.config.theta)):
        grouped.setdefault(cast(StiffConfig, run.config).points, []).append(run)
    return grouped
