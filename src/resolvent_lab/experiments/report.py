"""The report: one HTML page that opens with the main figure; claims, figures and tables of each experiment follow."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from resolvent import plotting
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.claim import VERDICTS, ClaimResult
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.processes import ctrl_c_blocked, workers
from resolvent_lab.experiments.report_page import folded, page, picture, table
from resolvent_lab.experiments.results import Results, judged
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.tables import claim_rows, differences, failure_rows, settings_in_words

_TITLE = "Robust learning with implicit residual networks: the experiments"


@dataclass(frozen=True)
class Part:
    """What the report says about one experiment."""

    experiment: Experiment
    results: Results
    outcomes: Sequence[ClaimResult]
    figures: Sequence[Path]

    @property
    def main(self) -> Path | None:
        """The figure to open with, if the experiment has one."""
        return next((path for path in self.figures if path.stem == self.experiment.main_figure), None)


def write_report(out: Path, results: Results, jobs: int = 1) -> Path:
    """Draws the figures in parallel into out/figures, and writes out/report.html, which contains them."""
    found = list(judged(results))
    names, runs = [experiment.name for experiment, _, _ in found], [part.runs for _, part, _ in found]
    folders = [out / "figures"] * len(found)
    if jobs > 1 and len(found) > 1:
        with workers(min(jobs, len(found))) as started:
            with ctrl_c_blocked():
                drawing = started.pool.map(_draw_with_one_thread, names, runs, folders)
            drawn = list(drawing)
    else:
        drawn = list(map(_draw, names, runs, folders))
    parts = [Part(*each, figures) for each, figures in zip(found, drawn, strict=True)]
    main = _main_part(parts)
    sections = "".join(_section(part, main) for part in parts)
    links = {"top": "Summary", **{part.experiment.name: part.experiment.title for part in parts}}
    path = out / "report.html"
    path.write_text(page(_TITLE, links, _summary(parts, main, results.runs) + sections), encoding="utf-8")
    return path


def _main_part(parts: Sequence[Part]) -> Part | None:
    """The part whose figure the report opens with: one that has a headline, if there is one."""
    with_figure = [part for part in parts if part.main is not None]
    with_headline = [part for part in with_figure if part.experiment.headline(part.results.runs)]
    return next(iter([*with_headline, *with_figure]), None)


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


def _summary(parts: Sequence[Part], main: Part | None, runs: Sequence[Run]) -> str:
    versions = sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})
    opening = ""
    if main is not None and main.main is not None:
        headline = html.escape(main.experiment.headline(main.results.runs))
        opening = (f'<p class="lead">{headline}</p>' if headline else "") + picture(main.main, main.experiment.captions)
    how = (
        f"<p>{len(runs)} runs. A claim counts as reproduced if its number lies within its limits for every seed whose "
        "runs are there. The limits are meant for training at full length. After a shortened training a claim that "
        "misses its limits is not judged. Limits marked (from a figure) only say where curves were in a figure of the "
        "paper, with a margin of ours: a miss by little means little. Those marked (own limit) are ours, chosen after "
        "seeing results, where the paper shows only a trend. Claims show a value for each seed, measurements the "
        f"mean over the seeds ± the standard deviation.</p><p>Versions: {html.escape(', '.join(versions))}.</p>"
    )
    cards = "".join(_card(part) for part in parts)
    return f'{opening}<ul class="cards">{cards}</ul>{folded("How to read this page", how)}'


def _card(part: Part) -> str:
    counts = Counter(outcome.verdict for outcome in part.outcomes)
    told = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    failed = [f"{len(part.results.failures)} runs failed"] if part.results.failures else []
    text = "; ".join([*(told or ["claims of the paper are about other data"]), *failed])
    return f'<li><a href="#{part.experiment.name}"><b>{part.experiment.title}</b></a><br>{text}.</li>'


def _section(part: Part, main: Part | None) -> str:
    experiment, configs = part.experiment, [run.config for run in part.results.runs]
    shortened = differences(experiment, configs)
    note = folded("Not the full sweep", f"<p>Shortened: {html.escape(shortened)}.</p>") if shortened else ""
    failures = table(failure_rows(part.results.failures), "text") if part.results.failures else ""
    seed = "all seeds" if experiment.figures_show_all_seeds else f"seed {min(config.seed for config in configs)}"
    shown = [path for path in part.figures if part is not main or path != part.main]
    pictures = "".join(picture(path, experiment.captions) for path in shown)
    measured = "".join(folded(name, table(rows)) for name, rows in experiment.tables(part.results.runs).items())
    settings = f"<p>{html.escape(settings_in_words(configs))}.</p>"
    return (
        f'<section id="{experiment.name}"><h2>{experiment.title}</h2><p>{html.escape(experiment.description)}</p>{note}'
        f'{failures}{pictures}<p class="soft">The figures show the runs with {seed}.</p>'
        f"{folded('Claims', _claims(part), is_open=True)}{measured}"
        f"{folded(f'Settings of the {len(configs)} runs', settings)}</section>"
    )


def _claims(part: Part) -> str:
    if not part.outcomes:
        return "<p>The claims of the paper are about other data, and are not judged.</p>"
    kinds = ["-".join(outcome.verdict.replace(":", "").replace(",", "").split()) for outcome in part.outcomes]
    places = [part.experiment.shown_in(outcome.claim) for outcome in part.outcomes]
    header, *rows = claim_rows(part.outcomes)
    shown = [[header[0], "paper", *header[1:]]]
    shown += [[row[0], place, *row[1:]] for row, place in zip(rows, places, strict=True)]
    return table(shown, "text", kinds)
