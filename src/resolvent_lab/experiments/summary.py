"""The results as plain text: tables of claims and measurements for each experiment, in Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent_lab.experiments import strict_json
from resolvent_lab.experiments.claim import ClaimResult
from resolvent_lab.experiments.results import Results, judged
from resolvent_lab.experiments.tables import claim_rows, failure_rows


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
    path.write_text("\n".join(parts), encoding="utf-8")
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
        "own_limits": claim.own,
        "failed_seeds": outcome.failed,
        "verdict": outcome.verdict,
    }


def verdicts(results: Results) -> str:
    """A table, as text, of the number of claims that were reproduced."""
    rows = [["experiment", "runs", "failed", "claims reproduced", "not reproduced", "not run"]]
    for experiment, part, outcomes in judged(results):
        found = [outcome.verdict for outcome in outcomes]
        counts = [len(part.runs), len(part.failures), *map(found.count, ("reproduced", "not reproduced", "not run"))]
        rows.append([experiment.name, *map(str, counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *body))
