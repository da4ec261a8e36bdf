"""The learned oscillator: its curve in the plane, and its voltage over time."""

from collections.abc import Sequence
from typing import cast

import torch
from matplotlib.figure import Figure

from resolvent.plotting import COLORS
from resolvent_lab.experiments.grid import grid
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.van_der_pol.model import ADAPTIVE, PERIODS, Circuit, VanDerPol, VanDerPolConfig, cycle


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    return {"van-der-pol-cycles": _cycles(runs)}


@torch.no_grad()
def _cycles(runs: Sequence[Run]) -> Figure:
    figure, (top, bottom) = grid(2, len(runs), 2.0, sharey=True)
    for run, plane, course in zip(runs, top, bottom, strict=True):
        config, network = cast(VanDerPolConfig, run.config), cast(VanDerPol, run.network())
        for field, color, style in ((Circuit(config.mu), "0.6", "-"), (network.field, COLORS[0], "--")):
            times, states = cycle(field, config.mu)
            plane.plot(states[:, 0], states[:, 1], style, color=color, linewidth=1.0)
            course.plot(times / config.mu, states[:, 0], style, color=color, linewidth=1.0)
        plane.set(title=_title(config), xlim=(-2.6, 2.6), ylim=(-2.6, 2.6))
        plane.set_xlabel("$x$")
        course.set(xlabel=r"$t / \mu$", ylim=(-2.6, 2.6), xlim=(0, PERIODS))
    top[0].set_ylabel("$w$")
    bottom[0].set_ylabel("$x$")
    return figure


def _title(config: VanDerPolConfig) -> str:
    if config.method == ADAPTIVE:
        return "adaptive" + (",\nbounded" if config.bounded else "" if config.stages else ",\nall at once")
    return f"one step,\n{config.method}"
