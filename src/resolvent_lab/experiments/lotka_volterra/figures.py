"""Figures 6c, 10 and 11 of the paper: the orbits, the learned fields with their spectra, and the extrapolation."""

from collections.abc import Sequence
from typing import cast

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import resolvent as rs
from resolvent import plotting
from resolvent.plotting import COLORS
from resolvent_lab.experiments.grid import grid
from resolvent_lab.experiments.lotka_volterra.model import HORIZON, LAYERS, LotkaVolterra, orbits
from resolvent_lab.experiments.run import Run
from resolvent_lab.problems import predator_and_prey as truth

_XLIM, _YLIM = (0.0, 3.0), (0.0, 2.0)


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    runs = sorted(runs, key=lambda run: run.config.theta)
    return {
        "lotka-volterra-data": _data(),
        "lotka-volterra-fields": _fields(runs),
        "lotka-volterra-extrapolation": _extrapolation(runs),
    }


def _data() -> Figure:
    figure, ((ax,),) = grid(1, 1, 3.0)
    plotting.vector_field(truth, ax, xlim=_XLIM, ylim=_YLIM, trajectories=orbits(HORIZON, 500))
    _dots(ax, orbits())
    return figure


def _fields(runs: Sequence[Run]) -> Figure:
    figure, (top, bottom) = grid(2, len(runs), 2.3)
    for run, field, spectrum in zip(runs, top, bottom, strict=True):
        block = run.network().block
        (data,) = run.batches()
        with torch.no_grad():
            trajectory = block.trajectory(data[0])
        plotting.vector_field(block.field, field, xlim=_XLIM, ylim=_YLIM, trajectories=trajectory.states)
        _dots(field, data)
        field.set_title(rf"$\theta={run.config.theta:g}$")
        eigenvalues = rs.analysis.jacobian_spectrum(block.field, trajectory.times, trajectory.states)
        plotting.spectrum(eigenvalues, block.scheme, spectrum, h=HORIZON / LAYERS, xlim=(-0.5, 0.5), ylim=(-0.5, 0.5))
    return figure


def _extrapolation(runs: Sequence[Run]) -> Figure:
    figure, (top, bottom) = grid(2, len(runs), 2.2)
    for run, discrete, continuous in zip(runs, top, bottom, strict=True):
        network = cast(LotkaVolterra, run.network())
        (data,) = run.batches()
        outer = data[:1, -1]
        for ax, states in ((discrete, network.extrapolate(outer)), (continuous, network.continuous(outer))):
            ax.plot(states[:, 0, 0], states[:, 0, 1], color=COLORS[0], linewidth=0.5)
            ax.plot(data[:, -1, 0], data[:, -1, 1], "o", color=COLORS[1], markersize=2)
            # Fixed limits: the data would be a dot beside an orbit that diverges.
            ax.set(xlim=(-1, 4), ylim=(-1, 3))
        discrete.set_title(rf"$\theta={run.config.theta:g}$")
    top[0].set_ylabel("layers")
    bottom[0].set_ylabel("continuous")
    return figure


def _dots(ax: Axes, data: Tensor) -> None:
    for k in range(data.shape[1]):
        ax.plot(data[:, k, 0], data[:, k, 1], "o", color=COLORS[1], markersize=1.5, zorder=5)
