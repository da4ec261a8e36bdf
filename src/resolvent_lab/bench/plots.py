"""Plots of the growth of cost, from recorded results."""

from pathlib import Path
from typing import Any

LABELS = {
    "depth": "layers",
    "stiffness": "stiffness",
    "tolerance": "tolerance",
}


def draw(series: dict[str, Any], out: Path) -> list[Path]:
    """Writes growth.png and memory.png for the results of row B5. It needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(LABELS), 5), layout="constrained")
    axes = figure.subplots(2, len(LABELS))
    for (above, below), (name, label) in zip(axes.T, LABELS.items(), strict=True):
        points = [point for point in series[name] if "ratio" in point]
        values = [point["value"] for point in points]
        low, middle, high = zip(*(point["ratio"] for point in points), strict=True)
        above.fill_between(values, low, high, alpha=0.3)
        above.plot(values, middle, marker=".")
        below.plot(values, [point["iterations"] for point in points], marker=".")
        below.set_xlabel(label)
        for ax in (above, below):
            ax.set_xscale("log")
            ax.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("training step, x explicit")
    axes[1, 0].set_ylabel("iterations per layer")
    memory = Figure(figsize=(4.5, 3.5), layout="constrained")
    ax = memory.subplots()
    for name in series["memory"][0]["bytes"]:
        found = [(point["value"], point["bytes"][name]) for point in series["memory"] if point["bytes"][name]]
        ax.loglog(*zip(*found, strict=True), marker=".", label=name)
    ax.set(xlabel="layers", ylabel="peak memory of a training step, bytes")
    ax.legend()
    paths = [out / "growth.png", out / "memory.png"]
    for drawn, path in zip((figure, memory), paths, strict=True):
        drawn.savefig(path, dpi=110)
    return paths
