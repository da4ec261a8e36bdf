"""Records of measured tasks: ratios to the explicit network of the same kind, and files that are merged.

A record has the row, title, theta, tolerance and machine of a task, and for each contender its kind, the times of all
turns of a training step and of inference, peak memory, residual and error of the gradients.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

EXPLICIT, OURS = "explicit", "resolvent"
ROOM = 1.25
"""How much a measured residual may exceed the tolerance: it includes the rounding error of the states."""
RESULTS = "results.json"
_KEY = ("machine", "row", "title", "network", "theta", "tolerance")

Record = dict[str, Any]


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def ratio(entry: Record, other: Record, action: str) -> list[float]:
    """The quartiles over the rounds of the ratio of two contenders' times."""
    return quartiles([a / b for a, b in zip(entry[action], other[action], strict=True)])


def reference(record: Record, kind: str, action: str) -> Record | None:
    """The fastest explicit network of a kind."""
    found = [
        entry for name, entry in record["contenders"].items() if name.startswith(EXPLICIT) and entry["kind"] == kind
    ]
    return min(found, key=lambda entry: statistics.median(entry[action]), default=None)


def cost(record: Record, name: str, action: str = "train") -> list[float] | None:
    """The quartiles of a contender's time relative to `reference`; None if one of them was not measured."""
    entry = record["contenders"].get(name)
    base = reference(record, entry["kind"], action) if entry else None
    return ratio(entry, base, action) if entry and base else None


def memory(record: Record, name: str) -> float | None:
    """Peak memory of a training step relative to `reference`."""
    entry = record["contenders"].get(name)
    base = reference(record, entry["kind"], "train") if entry else None
    return entry["peak_bytes"] / base["peak_bytes"] if entry and base else None


def accurate(record: Record, name: str) -> bool:
    """Whether the residual of a contender reaches the tolerance. That of an explicit network is not asked."""
    return bool(record["contenders"][name].get("residual", 0.0) <= ROOM * record["tolerance"])


def merged(results: Iterable[Record]) -> Record:
    """The results of several runs as one. The later of two measurements of a kind of contenders counts."""
    records: dict[tuple[Any, ...], Record] = {}
    growth: Record = {}
    for each in results:
        for record in each["records"]:
            key = tuple(record[name] for name in _KEY)
            records[key] = _joined(records[key], record) if key in records else record
        growth = each["growth"] or growth
    return {"records": list(records.values()), "growth": growth}


def _joined(old: Record, new: Record) -> Record:
    """The new record, with the contenders of the old one whose kinds were not measured again."""
    again = {entry["kind"] for entry in new["contenders"].values()}
    kept = {name: entry for name, entry in old["contenders"].items() if entry["kind"] not in again}
    contenders = kept | new["contenders"]
    failures = {name: why for name, why in (old["failures"] | new["failures"]).items() if name not in contenders}
    return new | {"contenders": contenders, "failures": failures, "tried": old["tried"] | new["tried"]}


def read(path: Path) -> Record:
    """The results in a file."""
    try:
        results: Record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the results in {path}: {error}") from None
    if not isinstance(results, dict) or "records" not in results:
        raise ValueError(f"cannot read the results in {path}: it was not written by this version. Measure again.")
    return results


def save(results: Record, out: Path) -> None:
    """Writes results.json, one line per record, times to four digits."""
    lines = ",\n".join(json.dumps(_rounded(record)) for record in results["records"])
    growth = json.dumps(_rounded(results["growth"]))
    (out / RESULTS).write_text(f'{{"records": [\n{lines}\n],\n"growth": {growth}}}\n')


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
