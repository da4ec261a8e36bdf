"""Figures: accuracy under noise, example images, spectra of the stages, certified accuracy."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import cast

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import resolvent as rs
from resolvent import plotting
from resolvent.models import ImplicitResNet
from resolvent.plotting import COLORS
from resolvent_lab.experiments.grid import grid
from resolvent_lab.experiments.mnist.columns import SMOOTH, family
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.measure import HARDER, NOISE_SEED, SIGMAS, cell
from resolvent_lab.experiments.mnist.network import Mnist
from resolvent_lab.experiments.mnist.tables import by_column
from resolvent_lab.experiments.run import Run
from resolvent_lab.images import Images, Split
from resolvent_lab.robustness import certified_accuracy, certified_radii, gaussian_noise

_CERTIFIED = 200
_RADII = [10 ** (n / 20 - 4) for n in range(101)]
_LINES = ("-", "--", ":")
_GUESSES = 12
"""Predictions per line above an image."""


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    columns = by_column(runs)
    models = {column: cast(Mnist, of_column[0].network()).model for column, of_column in columns.items()}
    data = cast(Split, runs[0].batches()).part(cast(MnistConfig, runs[0].config).held_out)
    return {
        "mnist-main": _main(columns),
        "mnist-noise": _noise(columns),
        "mnist-digits": _digits(models, data),
        "mnist-spectra": _spectra(models, data),
        "mnist-certified": _certified(models, data.take(slice(_CERTIFIED))),
    }


def _main(columns: Mapping[str, Sequence[Run]]) -> Figure:
    """Held-out images: the plain network, the paper's and those with a penalty, or all if none of these was run."""
    shown = [name for name in ("theta1", "explicit-free", *SMOOTH) if name in columns] or list(columns)
    figure, axes = grid(1, 1, 2.6)
    ax = axes[0][0]
    for color, name in zip(COLORS, shown, strict=False):
        _band(ax, columns[name], "held_out", False, color, name)
    ax.set(xlabel="standard deviation of the noise", ylabel="held-out digits right, %")
    with plotting.paper_style():
        ax.legend(loc="lower left")
    return figure


def _noise(columns: Mapping[str, Sequence[Run]]) -> Figure:
    """Mean accuracy over seeds, with a band of one standard deviation. Each row shows columns of one family."""
    families = [list(members) for _, members in groupby(columns, family)]
    rows = [names[n : n + len(COLORS)] for names in families for n in range(0, len(names), len(COLORS))]
    figure, axes = grid(len(rows), 4, 2.0, sharey=True)
    panels = [(part, clamped) for clamped in (False, True) for part in ("train", "held_out")]
    for shown, row in zip(rows, axes, strict=True):
        for ax, (part, clamped) in zip(row, panels, strict=True):
            for color, name in zip(COLORS, shown, strict=False):
                _band(ax, columns[name], part, clamped, color, name)
        with plotting.paper_style():
            row[0].legend(fontsize=6, loc="lower left")
        row[0].set_ylabel("top-1 accuracy, %")
    for ax, (part, clamped) in zip(axes[0], panels, strict=True):
        ax.set_title(f"{part.replace('_', '-')}, {'clamped' if clamped else 'not clamped'}")
    for ax in axes[-1]:
        ax.set_xlabel(r"$\sigma$")
    return figure


def _band(ax: Axes, runs: Sequence[Run], part: str, clamped: bool, color: str, label: str) -> None:
    sigmas = (*SIGMAS, *HARDER)
    accuracies = [[run.metrics[cell(part, sigma, 1, clamped)] for run in runs] for sigma in sigmas]
    means = [fmean(values) for values in accuracies]
    ax.plot(sigmas, means, color=color, label=label)
    if len(runs) > 1:
        spreads = [stdev(values) for values in accuracies]
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        ax.fill_between(sigmas, low, high, color=color, alpha=0.15, linewidth=0)


def _digits(models: Mapping[str, ImplicitResNet], data: Images, count: int = 6) -> Figure:
    """The first held-out images under increasing noise, with the predictions of each network."""
    shown = data.take(slice(count))
    figure, axes = grid(len(SIGMAS), count, 1.3)
    for row, sigma in zip(axes, SIGMAS, strict=True):
        noisy = gaussian_noise(shown.images, sigma, NOISE_SEED)
        with torch.no_grad():
            guesses = torch.stack([model(noisy).argmax(1) for model in models.values()])
        for n, ax in enumerate(row):
            pixels = noisy[n].clamp(0, 1).permute(1, 2, 0).squeeze(-1).numpy()
            ax.imshow(pixels, cmap="gray_r", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            right = int((guesses[:, n] == shown.labels[n]).sum())
            title = textwrap.fill(" ".join(str(int(guess)) for guess in guesses[:, n]), 2 * _GUESSES)
            ax.set_title(title, fontsize=6, pad=2)
            ax.set_xlabel(f"{right} of {len(models)} right", fontsize=6, labelpad=1)
        row[0].set_ylabel(rf"$\sigma={sigma:g}$", fontsize=7)
    figure.supxlabel(textwrap.fill(f"titles: predictions of {', '.join(models)}", 28 * count), fontsize=6)
    return figure


def _spectra(models: Mapping[str, ImplicitResNet], data: Images) -> Figure:
    """The eigenvalues of each stage's field at one image; for large stages the 16 of largest modulus."""
    # Batch normalisation couples the samples of a batch: there is no spectrum for a single image.
    chosen = {name: m for name, m in models.items() if all(getattr(s.field, "rowwise", False) for s in m.stages)}
    stages = max(len(model.stages) for model in chosen.values())
    figure, axes = grid(len(chosen), stages, 1.7)
    for row, (name, model) in zip(axes, chosen.items(), strict=True):
        with torch.no_grad():
            trajectories = model.forward_with_trajectories(data.images[:1]).trajectories
        for n, (ax, stage, trajectory) in enumerate(zip(row, model.stages, trajectories, strict=False)):
            at = trajectory.times[:-1], trajectory.states[:-1]
            values = rs.analysis.jacobian_spectrum(stage.field, *at, max_size=400)
            h = float(torch.as_tensor(stage.step_size))
            plotting.spectrum(values, stage.scheme, ax, h=h, resolution=101)
            ax.set(xlabel="", ylabel=name if n == 0 else "")
            ax.set_title(f"stage {n + 1}" if row is axes[0] else "", fontsize=8)
    return figure


def _certified(models: Mapping[str, ImplicitResNet], data: Images) -> Figure:
    """Certified accuracy on held-out images against the l2 radius."""
    figure, ((ax,),) = grid(1, 1, 2.6)
    for n, (column, model) in enumerate(models.items()):
        color, line = _look(n)
        try:
            radii = certified_radii(model, data.images, data.labels)
        except ValueError:  # a free field with theta > 0 may reach the pole, and has no Lipschitz bound
            ax.plot([], [], line, color=color, label=f"{column}: no certificate")
            continue
        accuracy = certified_accuracy(radii, _RADII)
        ax.plot(_RADII, [100 * value for value in accuracy], line, color=color, label=column)
    ax.set(xlabel=r"certified $\ell_2$ radius", ylabel="held-out images, %", xscale="log")
    _legend(figure, ax)
    return figure


def _look(n: int) -> tuple[str, str]:
    return COLORS[n % len(COLORS)], _LINES[n // len(COLORS) % len(_LINES)]


def _legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=6)
