"""The outcome as plain text: a table of claims for each experiment, in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from resolvent.experiments.claims import CLAIMS, judge
from resolvent.experiments.run import Run
from resolvent.experiments.spread import spread
from resolvent.experiments.tables import tables


def write_summary(out: Path, runs: Sequence[Run]) -> Path:
    """Write out/summary.md: what became of the claims, and what was measured."""
    parts = []
    for experiment, claims in CLAIMS.items():
        chosen = [run for run in runs if run.experiment == experiment]
        if not chosen:
            continue
        rows = [["claim", "measured is", "value", "criterion", "seeds", "verdict"]]
        for outcome in judge(claims, chosen):
            value = spread(outcome.values) if outcome.values else "none"
            seeds = f"{outcome.successes} of {len(outcome.values)}"
            claim = outcome.claim
            rows.append([claim.statement, claim.quantity, value, claim.criterion, seeds, outcome.verdict])
        measured = "".join(f"\n{title}\n\n{_markdown(t)}" for title, t in tables(experiment, chosen).items())
        parts.append(f"## {experiment}\n\n{_markdown(rows)}{measured}")
    path = out / "summary.md"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *body))
