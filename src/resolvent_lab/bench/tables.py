"""All results as tables: one per task, and one per row of several networks."""

import statistics
from collections.abc import Sequence
from typing import Any

from resolvent_lab.bench.contender import KINDS
from resolvent_lab.bench.markdown import spread, table, time_of
from resolvent_lab.bench.records import OURS, accurate, cost, memory

HEAD = (
    "contender",
    "kind",
    "training step",
    "x explicit",
    "inference",
    "x explicit",
    "peak memory",
    "residual",
    "gradient",
)
_LONG = 1.0
"""Seconds from which on the first steps are mentioned."""
Record = dict[str, Any]


def tables(results: Record) -> str:
    """A section for each machine, and the growth of cost."""
    lines = ["# Tables of cost", ""]
    for machine in dict.fromkeys(record["machine"] for record in results["records"]):
        records = [record for record in results["records"] if record["machine"] == machine]
        lines += [f"## {machine}", "", *(f"Without {name}.\n" for name in _absent(records))]
        for record in records:
            lines += [] if record["network"] else _record(record)
        for row in dict.fromkeys(record["row"] for record in records if record["network"]):
            lines += _networks(row, [record for record in records if record["row"] == row])
    growth = results["growth"]
    lines += [f"## B5: growth of cost, {growth['machine']}", ""] if growth else []
    for axis, points in growth.items():
        if axis != "machine":
            lines += _memory(points) if axis == "memory" else _growth(axis, points)
    return "\n".join(lines).rstrip() + "\n"


def _absent(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record["absent"]))


def _record(record: Record) -> list[str]:
    """All contenders of a task, in the order of their kinds."""
    theta = "" if record["theta"] is None else f", theta = {record['theta']:g}"
    title = f"### {record['row']}: {record['title']}{theta}, tolerance {record['tolerance']:.0e}"
    names = sorted(record["contenders"], key=lambda name: KINDS.index(record["contenders"][name]["kind"]))
    rows = [_cells(name, record) for name in names]
    failed = [name for name, tried in record["tried"].items() if name not in record["contenders"] and tried]
    rows += [[name, "", "none of its settings reaches the tolerance", *[""] * (len(HEAD) - 3)] for name in failed]
    rows += [[name, "", reason, *[""] * (len(HEAD) - 3)] for name, reason in record["failures"].items()]
    return [title, "", *table(HEAD, rows), ""]


def _cells(name: str, record: Record) -> list[str]:
    entry = record["contenders"][name]
    cells = [_label(name, record), entry["kind"]]
    for action in ("train", "infer"):
        cells += [time_of(statistics.median(entry[action])), spread(cost(record, name, action))]
    times = memory(record, name)
    cells.append("" if times is None else f"{times:.2f}x")
    cells += [f"{entry[key]:.0e}" if key in entry else "" for key in ("residual", "gradient_error")]
    if not accurate(record, name):
        cells[-2] = f"**{cells[-2]}**"
    return cells


def _label(name: str, record: Record) -> str:
    """The name, with the fastest settings of a peer, or how long the first steps took if they compiled."""
    fit = [each for each in record["tried"].get(name, []) if each["fit"]]
    if fit:
        return f"{name} ({min(fit, key=lambda each: each['seconds'])['setting']})"
    entry = record["contenders"][name]
    compiles = entry["kind"] == "compiled" and entry["first_steps"] > _LONG
    return f"{name} (first steps {entry['first_steps']:.0f} s)" if compiles else name


def _networks(row: str, records: Sequence[Record]) -> list[str]:
    """A line for each title: the medians over its networks, the least and the largest."""
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        groups.setdefault((record["title"], record["theta"]), []).append(record)
    rows = []
    for (title, theta), group in groups.items():
        solved = [record for record in group if OURS in record["contenders"]]
        within = [record for record in solved if accurate(record, OURS)]
        train, infer = ([cost(record, OURS, action) for record in within] for action in ("train", "infer"))
        cells = [_range([each[1] for each in found if each]) for found in (train, infer)]
        cells.append(_range([each for record in within if (each := memory(record, OURS))]))
        rows.append([title, f"{theta:g}", f"{len(within)} of {len(group)}", *cells])
    head = ("networks", "theta", "solved to the tolerance", "training x explicit", "inference x explicit", "memory x")
    title = f"### {row}: median (least-largest) over several networks, tolerance {records[0]['tolerance']:.0e}, eager"
    return [title, "", *table(head, rows), ""]


def _range(values: Sequence[float]) -> str:
    return spread([min(values), statistics.median(values), max(values)]) if values else ""


def _growth(axis: str, points: Sequence[Record]) -> list[str]:
    rows = [
        [f"{point['value']:g}", time_of(point["seconds"][1]), spread(point["ratio"]), f"{point['iterations']:.1f}"]
        if "ratio" in point
        else [f"{point['value']:g}", point["failure"], "", ""]
        for point in points
    ]
    return [f"### B5: {axis}", "", *table((axis, "training step", "x explicit", "iterations"), rows), ""]


def _memory(points: Sequence[Record]) -> list[str]:
    names = list(points[0]["bytes"]) if points else []
    cells = [
        [f"{point['bytes'][name] / 1e6:.3g} MB" if point["bytes"][name] else "failed" for name in names]
        for point in points
    ]
    rows = [[f"{point['value']}", *row] for point, row in zip(points, cells, strict=True)]
    return ["### B5: peak memory of a training step", "", *table(("layers", *names), rows), ""]
