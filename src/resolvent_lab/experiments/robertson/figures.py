"""The learned reaction: species over time, and the cost of integrating it."""

from collections.abc import Sequence
from typing import cast

import torch
from matplotlib.figure import Figure

from resolvent.plotting import COLORS
from resolvent_lab.experiments.grid import grid
from resolvent_lab.experiments.robertson.model import FIRST, LAST, SPECIES, Robertson, held_out, solutions
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.segments import Segments

_SHOWN = 4


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    return {"robertson-species": _species(runs[0])}


@torch.no_grad()
def _species(run: Run) -> Figure:
    """Held-out solutions (lines) with the learned ones (dashed), and the fifty points of the data."""
    network = cast(Robertson, run.network())
    segments = cast(Segments, run.batches()[0])
    times = torch.logspace(FIRST, LAST, 201, dtype=torch.float64)
    times = torch.cat([times.new_zeros(1), times])
    y0 = held_out(network.config)[0][:_SHOWN]
    exact, learned = solutions(y0, times), network.integrate(y0, times, 1e-5).states
    figure, (row,) = grid(1, len(SPECIES), 2.2)
    for i, (ax, name) in enumerate(zip(row, SPECIES, strict=True)):
        ax.semilogx(times[1:], exact[1:, :, i], color="0.6", linewidth=1.6)
        ax.semilogx(times[1:], learned[1:, :, i], "--", color=COLORS[0], linewidth=0.9)
        ax.semilogx(segments.times[1], segments.end[:, i], "o", color=COLORS[1], markersize=2)
        ax.set(title=name, xlabel="$t$")
    return figure
