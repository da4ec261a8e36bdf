"""Tables and texts of the report: claims, failures, measurements, settings; the same as plain text."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from resolvent_lab import strict_json
from resolvent_lab.experiments.claim import VERDICTS, ClaimResult
from resolvent_lab.experiments.experiment import Experiment, Rows
from resolvent_lab.experiments.network import RunConfig
from resolvent_lab.experiments.results import Results, judged

if TYPE_CHECKING:
    from resolvent_lab.experiments.results import Failure
    from resolvent_lab.experiments.run import Run

Column = Callable[["Run"], float]


def claim_rows(outcomes: Sequence[ClaimResult]) -> Rows:
    """Rows of text, one for each claim. The header is first; the verdict is the last column."""
    rows = [["claim", "measured is", "value", "criterion", "seeds", "verdict"]]
    for outcome in outcomes:
        value = ", ".join(f"{value:.3g}" for value in outcome.values) or "none"
        claim = outcome.claim
        rows.append([claim.statement, claim.quantity, value, claim.criterion, outcome.seeds, outcome.verdict])
    return rows


def failure_rows(failures: "Sequence[Failure]") -> Rows:
    """Rows of text, one for each failed run. The header is first."""
    return [["failed run", "error"], *([failure.config.name, failure.error] for failure in failures)]


def by_settings(settings: Sequence[str], columns: Mapping[str, Column]) -> "Callable[[Sequence[Run]], dict[str, Rows]]":
    """A function that makes a table of runs, with one row for all seeds of a configuration.

    Arguments:
        settings: names of the settings that identify a configuration.
        columns: functions from a run to a number, by heading. The table shows mean and standard deviation over seeds.
    """

    def tables(runs: "Sequence[Run]") -> dict[str, Rows]:
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in runs:
            groups.setdefault(tuple(getattr(run.config, name) for name in settings), []).append(run)
        rows = [[*map(_words, settings), *columns, "seconds per run", "seeds"]]
        for key in sorted(groups):
            group = groups[key]
            cells = [spread([float(column(run)) for run in group]) for column in columns.values()]
            seconds = f"{fmean(run.seconds for run in group):.0f}"
            rows.append([*(_listed([value]) for value in key), *cells, seconds, str(len(group))])
        return {"Measurements": rows}

    return tables


def metric(name: str) -> Column:
    """A column that shows a metric."""
    return lambda run: run.metrics[name]


def spread(values: Sequence[float], digits: str = ".3g") -> str:
    """Mean and standard deviation over seeds, as text."""
    if not all(map(math.isfinite, values)):
        return ", ".join(f"{value:.3g}" for value in values)  # a field may blow up, and inf has no mean
    mean = f"{fmean(values):{digits}}"
    # Rounded to one digit first: the format .1g would write 10 as 1e+01.
    return mean if len(set(values)) < 2 else f"{mean} ± {float(f'{stdev(values):.1g}'):g}"


def settings_in_words(configs: Sequence[RunConfig]) -> str:
    """All settings with their values, as text."""
    return "; ".join(f"{_words(name)} {_listed(values)}" for name, values in _values(configs).items())


def differences(experiment: Experiment, configs: Sequence[RunConfig]) -> str:
    """The settings that differ from those of the full sweep, as text; empty if none does. Seeds are ignored."""
    full = _values(experiment.configs(False, None, 1))
    found = {name: values for name, values in _values(configs).items() if name != "seed" and values != full[name]}
    changes = (f"{_words(name)} {_listed(values)} instead of {_listed(full[name])}" for name, values in found.items())
    return "; ".join(changes)


def _values(configs: Sequence[RunConfig]) -> dict[str, list[Any]]:
    return {f.name: sorted({getattr(config, f.name) for config in configs}, key=_order) for f in fields(configs[0])}


def _order(value: Any) -> tuple[str, Any]:
    """Sorts numbers by size, and other values by type and text."""
    return ("", value) if isinstance(value, int | float) else (type(value).__name__, str(value))


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _words(name: str) -> str:
    return name.replace("_", " ")


def write_summary(out: Path, results: Results) -> Path:
    """Writes out/summary.md with claims, measurements and failures, and out/summary.json with the claims."""
    parts, records = [], []
    for experiment, part, outcomes in judged(results):
        records += [_record(experiment.name, outcome) for outcome in outcomes]
        shown = {"Claims": claim_rows(outcomes)} if outcomes else {}
        shown |= experiment.tables(part.runs)
        if part.failures:
            shown["Failures"] = failure_rows(part.failures)
        text = "\n".join(f"### {title}\n\n{_markdown(rows)}" for title, rows in shown.items())
        parts.append(f"## {experiment.title}\n\n{text}")
    path = out / "summary.md"
    path.write_text("# Claims and measurements\n\n" + "\n".join(parts), encoding="utf-8")
    strict_json.dump({"claims": records}, out / "summary.json")
    return path


def _record(experiment: str, outcome: ClaimResult) -> dict[str, Any]:
    claim = outcome.claim
    return {
        "experiment": experiment,
        "claim": claim.statement,
        "quantity": claim.quantity,
        "values": outcome.values,
        "low": claim.low,
        "high": claim.high,
        "limit_from": claim.limit_from,
        "failed_seeds": outcome.failed,
        "verdict": outcome.verdict,
    }


def verdicts(results: Results) -> str:
    """A table, as text, of the number of claims with each verdict. Verdicts that no claim has are left out."""
    parts = list(judged(results))
    given = {outcome.verdict for _, _, outcomes in parts for outcome in outcomes}
    shown = [verdict for verdict in VERDICTS if verdict in given]
    rows = [["experiment", "runs", "failed", *(f"claims: {verdict}" for verdict in shown[:1]), *shown[1:]]]
    for experiment, part, outcomes in parts:
        found = [outcome.verdict for outcome in outcomes]
        counts = [len(part.runs), len(part.failures), *map(found.count, shown)]
        rows.append([experiment.name, *map(str, counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *body))
