"""The report: one HTML page with settings, claims, figures and tables."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from resolvent import plotting
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.claim import ClaimResult
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.processes import ctrl_c_blocked, workers
from resolvent_lab.experiments.results import Results, judged
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.tables import claim_rows, differences, failure_rows, settings_in_words

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:3rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:.85rem;margin:1rem 0;display:block;overflow-x:auto}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}
.text td:nth-child(-n+2),.text th:nth-child(-n+2){text-align:left}
.reproduced td:last-child{color:#00694d}.not-reproduced td:last-child{color:#b3260a;font-weight:bold}
.not-reproduced{background:#fdf3f0}.not-run{color:#777}.note{border-left:4px solid #c98b00;padding-left:.8rem}
img{max-width:100%;display:block;margin:1.5rem auto}figcaption{text-align:center;font-size:.85rem;color:#555}"""


def write_report(out: Path, results: Results, jobs: int = 1) -> Path:
    """Draws the figures in parallel into out/figures, and writes out/report.html, which contains them."""
    parts = list(judged(results))
    names, runs = [experiment.name for experiment, _, _ in parts], [part.runs for _, part, _ in parts]
    folders = [out / "figures"] * len(parts)
    if jobs > 1 and len(parts) > 1:
        with workers(min(jobs, len(parts))) as started:
            with ctrl_c_blocked():
                drawing = started.pool.map(_draw_with_one_thread, names, runs, folders)
            drawn = list(drawing)
    else:
        drawn = list(map(_draw, names, runs, folders))
    lines = [_line(*part) for part in parts]
    sections = [_section(*part, figures) for part, figures in zip(parts, drawn, strict=True)]
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>resolvent: the paper\'s experiments</title>'
        f"<style>{_STYLE}</style><h1>Robust learning with implicit residual networks: the experiments</h1>"
        f"{_summary(lines, results.runs)}{''.join(sections)}</html>\n"
    )
    path = out / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _draw(name: str, runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws the figures of an experiment, for the first seed or for all seeds."""
    experiment, seed = experiments()[name], min(run.config.seed for run in runs)
    shown = runs if experiment.figures_show_all_seeds else [run for run in runs if run.config.seed == seed]
    with plotting.paper_style():
        drawn = experiment.figures(shown)
    return [plotting.save(figure, folder / figure_name)[0] for figure_name, figure in drawn.items()]


def _draw_with_one_thread(name: str, runs: Sequence[Run], folder: Path) -> list[Path]:
    torch.set_num_threads(1)  # several processes with as many threads as cores would slow each other down
    return _draw(name, runs, folder)


def _line(experiment: Experiment, part: Results, outcomes: Sequence[ClaimResult]) -> str:
    verdicts = [outcome.verdict for outcome in outcomes]
    failed = f"; {len(part.failures)} runs failed" if part.failures else ""
    return (
        f'<li><a href="#{experiment.name}">{experiment.title}</a>: {verdicts.count("reproduced")} claims '
        f"reproduced, {verdicts.count('not reproduced')} not, {verdicts.count('not run')} not run{failed}.</li>"
    )


def _summary(lines: Sequence[str], runs: Sequence[Run]) -> str:
    versions = sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})
    return (
        f"<p>{len(runs)} runs. A claim counts as reproduced if its number lies within its limits for every seed whose "
        "runs are there. The limits are meant for training at full length. Those marked (from a figure) only say where "
        "curves were in a figure of the paper, with a margin of ours: a miss by little means little. Those marked (own "
        "limit) are ours, chosen after seeing results, where the paper shows only a trend. Claims show a value for "
        "each seed, measurements the mean over the seeds ± the standard deviation.</p>"
        f"<ul>{''.join(lines)}</ul><p>Versions: {html.escape(', '.join(versions))}.</p>"
    )


def _section(experiment: Experiment, part: Results, outcomes: Sequence[ClaimResult], figures: Sequence[Path]) -> str:
    configs = [run.config for run in part.runs]
    shortened = differences(experiment, configs)
    note = f'<p class="note">Shortened: {html.escape(shortened)}.</p>' if shortened else ""
    failures = _table(failure_rows(part.failures), "text") if part.failures else ""
    seed = "all seeds" if experiment.figures_show_all_seeds else f"seed {min(config.seed for config in configs)}"
    pictures = "".join(_picture(path, experiment.captions) for path in figures)
    measured = "".join(
        f"<h3>{html.escape(name)}</h3>{_table(rows)}" for name, rows in experiment.tables(part.runs).items()
    )
    return (
        f'<h2 id="{experiment.name}">{experiment.title}</h2><p>{html.escape(experiment.description)}</p>{note}'
        f"<p>{len(configs)} runs: {html.escape(settings_in_words(configs))}.</p>{failures}"
        f"<h3>Claims</h3>{_claims(outcomes)}"
        f"<h3>Figures</h3><p>The figures show the runs with {seed}.</p>{pictures}"
        f"{measured}"
    )


def _claims(outcomes: Sequence[ClaimResult]) -> str:
    if not outcomes:
        return "<p>The claims of the paper are about other data, and are not judged.</p>"
    kinds = [outcome.verdict.replace(" ", "-") for outcome in outcomes]
    return _table(claim_rows(outcomes), "text", kinds)


def _table(rows: Sequence[Sequence[str]], kind: str = "", kinds: Sequence[str] = ()) -> str:
    """The first row is the header; `kinds` are the CSS classes of the other rows."""
    header, *body = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    lines = [f'<tr class="{name}">{row}</tr>' for name, row in zip(kinds or [""] * len(body), body, strict=True)]
    return f'<table class="{kind}"><tr>{header.replace("td>", "th>")}</tr>{"".join(lines)}</table>'


def _picture(path: Path, captions: Mapping[str, str]) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem.replace("-", " "))
    caption = html.escape(captions.get(path.stem, name))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
