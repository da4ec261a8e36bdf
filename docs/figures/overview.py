"""The picture of the README: stiff layers, and digits under noise.

    python docs/figures/overview.py

The left half is computed here. The right half shows the table of held-out accuracies in docs/results/mnist/summary.md.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

import resolvent as rs
from resolvent import plotting

HERE = Path(__file__).parent
SUMMARY = HERE.parent / "results" / "mnist" / "summary.md"
TABLE = "### Top-1 accuracy on held-out images, noise not clamped"
COLUMNS = {
    "explicit-free": "residual network",
    "explicit-smooth": "... with a penalty on sensitivity",
    "implicit-smooth-0.5": "... and implicit layers",
}


def attraction(t: Tensor | float, y: Tensor) -> Tensor:
    """Every state is drawn quickly to the curve cos t."""
    return -30 * (y - torch.cos(torch.as_tensor(t)))


def draw_layers(ax: Axes) -> None:
    """20 layers through the same stiff field, explicit and implicit."""
    start = torch.tensor([[0.0]])
    for theta, name, color in ((0.0, "explicit layers", 1), (0.5, "implicit layers, theta = 1/2", 0)):
        course = rs.ThetaBlock(attraction, theta=theta, num_steps=20, horizon=2.0).trajectory(start)
        ax.plot(course.times, course.states[:, 0, 0], "o-", color=plotting.COLORS[color], markersize=3, label=name)
    fine = torch.linspace(0, 2, 200)
    ax.plot(fine, rs.odeint(attraction, start, fine).states[:, 0, 0], "k:", label="exact flow")
    ax.set(ylim=(-1.5, 2.5), xlabel="depth", ylabel="state", title="A stiff field, 20 layers")
    ax.legend(loc="upper right", frameon=True, framealpha=1.0, edgecolor="white")


def accuracies() -> tuple[list[float], dict[str, list[float]]]:
    """The levels of noise, and the accuracies of the columns in per cent."""
    table = SUMMARY.read_text(encoding="utf-8").split(TABLE)[1].strip().split("\n\n")[0].splitlines()
    rows = {cells[0]: cells[1:-1] for cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in table)}
    levels = [float(cell.removeprefix("sigma = ")) for cell in rows["column"]]
    return levels, {name: [float(re.split(" ± ", cell)[0]) for cell in rows[name]] for name in COLUMNS}


def draw_noise(ax: Axes) -> None:
    levels, values = accuracies()
    for (name, label), color in zip(COLUMNS.items(), (1, 3, 0), strict=True):
        ax.plot(levels, values[name], "o-", color=plotting.COLORS[color], markersize=3, label=label)
    ax.set(xlabel="standard deviation of the noise", ylabel="% right", ylim=(50, 100))
    ax.set_title("Digits, learned from 1,000 clean images")
    ax.legend(loc="lower left")


def main() -> None:
    torch.set_default_dtype(torch.float64)
    with plotting.paper_style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(plotting.PAGE, 2.5), layout="constrained")
        draw_layers(left)
        draw_noise(right)
        figure.savefig(HERE / "overview.png", dpi=200, facecolor="white")


if __name__ == "__main__":
    main()
