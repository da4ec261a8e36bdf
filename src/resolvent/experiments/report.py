"""One page for all: what was done, the figures, the tables, and what became of the paper's claims."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from resolvent import plotting
from resolvent.experiments.claims import CLAIMS, Outcome, judge
from resolvent.experiments.figures import FIGURES, OF_ALL_SEEDS
from resolvent.experiments.run import Run
from resolvent.experiments.spread import spread
from resolvent.experiments.tables import tables

_DONE = {
    "regression": (
        "Regression",
        "Twenty points of the sine on [-5, 5], as states (x, 0) in the plane, pass through five theta layers with "
        "h = 1 that share one perceptron of width 10 (GELU, 380 parameters). The loss is the mean squared error of the "
        "second component, plus alpha_div times the divergence, weighted with (t/T)², plus 0.1 times the squared "
        "Jacobian along the trajectories, both estimated with one Gaussian probe; Adam, full batch. Iterations are "
        "counted at the trained networks: L-BFGS up to the authors' tolerance, |r|² ≤ 1e-6, and the library's default "
        "up to its own, |r| ≤ 1e-6 of the scale.",
    ),
    "stiff": (
        "A stiff system",
        "The flow of z' = -20 (z - cos min(t, 2)) is learned from 100 trajectories, five from each cell of time, by "
        "twenty layers with h = 0.1 and weights of their own: F^{-25,-15} around perceptrons of width 4 (ReLU, "
        "normalised). The loss is the mean squared error at 2, 4 or 10 points plus 0.1/20 times the squared "
        "differences of neighbouring layers; Adam, a cell of time at a step. An exact fit needs the slope "
        "(E - 1) / (h (1 + theta (E - 1))), E = exp(-2): -8.65, -15.23 and -63.9 for theta = 0, 0.5 and 1, of which "
        "only the second is within the limits; the table compares the slopes with the nearest one allowed. Continuous "
        "trajectories integrate the learned field by RK4 with steps of 0.002.",
    ),
    "lotka-volterra": (
        "Predator and prey",
        "Five orbits of the Lotka-Volterra system on [0, 10], 51 points each, are fitted by fifty layers with h = 0.2 "
        "that share one perceptron of width 20 (ReLU, 1780 parameters), without any regularisation; Adam, full batch. "
        "The layers go on to t = 200; continuous trajectories integrate the learned field by RK4 with steps of 0.04. "
        "The late radius is the mean distance from the equilibrium after t = 100 over that of the true orbit. On inner "
        "orbits the extrapolation drifts even where the outer one, which the paper shows, does not.",
    ),
    "mnist": (
        "Digits under noise",
        "Residual networks of one size, with four stages of two theta layers, are trained on a thousand clean images "
        "and shown images with Gaussian noise of standard deviation sigma: the training images, as in the paper, and "
        "held-out ones; the paper's numbers are in parentheses. Columns theta0 to theta1 are the paper's, with "
        "F^{-3,1}; for theta = 0 that field cancels the skip connection, so that explicit-2.5 (F^{-2.5,1}), "
        "explicit-1lip (F^{-1,1}), explicit-free (F = S*G, the usual residual network) and explicit-batchnorm are the "
        "explicit networks to compare with. Numbers are means over draws of the noise, the same for all networks, "
        "and over seeds, with the standard deviation over seeds.",
    ),
}

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:3rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:.85rem;margin:1rem 0;display:block;overflow-x:auto}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}
.claims td:nth-child(-n+2),.claims th:nth-child(-n+2){text-align:left}
.reproduced{color:#00694d}.not-reproduced{color:#b3260a;font-weight:bold}.not-run{color:#777}
img{max-width:100%;display:block;margin:1.5rem auto}figcaption{text-align:center;font-size:.85rem;color:#555}"""


def write_report(out: Path, runs: Sequence[Run]) -> Path:
    """Draw the figures into out/figures, and write out/report.html, which needs no other file."""
    sections, counts = [], []
    for experiment in CLAIMS:
        chosen = [run for run in runs if run.experiment == experiment]
        if not chosen:
            continue
        outcomes = judge(CLAIMS[experiment], chosen)
        counts.append((experiment, outcomes))
        sections.append(_section(experiment, chosen, outcomes, _draw(experiment, chosen, out / "figures")))
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>resolvent: the paper\'s experiments</title>'
        f"<style>{_STYLE}</style><h1>Robust learning with implicit residual networks: the experiments</h1>"
        f"{_summary(counts, runs)}{''.join(sections)}</html>\n"
    )
    path = out / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _draw(experiment: str, runs: Sequence[Run], folder: Path) -> list[Path]:
    """The figures show the runs of one seed, unless they are about several."""
    seed = min(run.config.seed for run in runs)
    shown = runs if experiment in OF_ALL_SEEDS else [run for run in runs if run.config.seed == seed]
    with plotting.paper_style():
        drawn = FIGURES[experiment](shown)
    return [plotting.save(figure, folder / name)[0] for name, figure in drawn.items()]


def _summary(counts: Sequence[tuple[str, Sequence[Outcome]]], runs: Sequence[Run]) -> str:
    lines = []
    for experiment, outcomes in counts:
        verdicts = [outcome.verdict for outcome in outcomes]
        lines.append(
            f"<li>{_DONE[experiment][0]}: {verdicts.count('reproduced')} claims reproduced, "
            f"{verdicts.count('not reproduced')} not, {verdicts.count('not run')} not run.</li>"
        )
    versions = sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})
    return (
        f"<p>{len(runs)} runs. A claim counts as reproduced if its number lies within its limits for every seed; the "
        "limits are meant for training at full length, and were set before these runs.</p>"
        f"<ul>{''.join(lines)}</ul><p>Versions: {html.escape(', '.join(versions))}.</p>"
    )


def _section(experiment: str, runs: Sequence[Run], outcomes: Sequence[Outcome], figures: Sequence[Path]) -> str:
    title, done = _DONE[experiment]
    epochs = ", ".join(str(count) for count in sorted({run.config.epochs for run in runs}))
    seeds = len({run.config.seed for run in runs})
    length = f"{len(runs)} runs of {epochs} epochs, {seeds} {'seed' if seeds == 1 else 'seeds'}."
    pictures = "".join(_picture(path) for path in figures)
    measured = "".join(
        f"<h3>{html.escape(title)}</h3>{_table(rows)}" for title, rows in tables(experiment, runs).items()
    )
    return (
        f"<h2>{title}</h2><p>{html.escape(done)} {length}</p><h3>Claims</h3>{_claims(outcomes)}"
        f"<h3>Figures</h3>{pictures}{measured}"
    )


def _claims(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        claim, kind = outcome.claim, outcome.verdict.replace(" ", "-")
        measured = spread(outcome.values) if outcome.values else "none"
        seeds = f"{outcome.successes} of {len(outcome.values)}"
        cells = (claim.statement, claim.quantity, measured, claim.criterion, seeds, outcome.verdict)
        rows.append(f'<tr class="{kind}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    header = "".join(f"<th>{name}</th>" for name in ("claim", "measured is", "value", "criterion", "seeds", "verdict"))
    return f'<table class="claims"><tr>{header}</tr>{"".join(rows)}</table>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    tags = ["th", *["td"] * (len(rows) - 1)]
    lines = (
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in zip(tags, rows, strict=True)
    )
    return f"<table>{''.join(lines)}</table>"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem.replace("-", " "))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"><figcaption>{name}</figcaption></figure>'
