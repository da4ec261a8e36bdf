"""The results as tables in Markdown."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent_lab.bench.measure import quartiles
from resolvent_lab.bench.peers import ROOM

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
REFERENCE, OWN = "explicit", "resolvent"
HEAD = ("contender", "training step", "x explicit", "inference", "x explicit", "peak memory", "residual", "gradient")
Record = dict[str, Any]


def markdown(run: Record) -> str:
    """A summary of all rows, a table for each, and the growth of cost."""
    lines = [f"Measured with {run['machine']}."]
    lines += [f"Without {name}." for name in run["absent"]]
    if run["rows"]:
        lines += ["", *_summary(run["rows"]), ""]
    for record in run["rows"]:
        lines += _record(record)
    for axis, points in run.get("growth", {}).items():
        lines += _memory(points) if axis == "memory" else _growth(axis, points)
    return "\n".join(lines).rstrip() + "\n"


def write_between_markers(page: Path, text: str) -> None:
    """Replaces the text between the two markers of a page."""
    content = page.read_text()
    page.write_text(f"{content.split(BEGIN)[0]}{BEGIN}\n{text}{END}{content.split(END)[1]}")


def _summary(records: Sequence[Record]) -> list[str]:
    """Training steps relative to the explicit network, and other libraries relative to our fastest contender."""
    names = list(dict.fromkeys(name for record in records for name in (*record["contenders"], *record["tried"])))
    others = [name for name in names if not name.startswith((REFERENCE, OWN))]
    head = [
        "training step",
        REFERENCE,
        *(f"{name} / explicit" for name in names[1:]),
        *(f"{name} / ours" for name in others),
    ]
    rows = []
    for record in records:
        found = record["contenders"]
        able = [name for name, entry in found.items() if name.startswith(OWN) and _accurate(entry, record)]
        ours = min(able, key=lambda name: _median(found[name]), default=None)
        cells = [f"{record['row']} {record['title']}{_theta(record, '=')}", _time(_median(found[REFERENCE]))]
        cells += [f"{found[name]['train']['ratio'][1]:.2f}" if name in found else "" for name in names[1:]]
        cells += [_spread(_ratios(found[name], found[ours])) if ours and name in found else "" for name in others]
        rows.append(cells)
    return _table(head, rows)


def _ratios(entry: Record, other: Record) -> list[float]:
    turns = zip(entry["train"]["turns"], other["train"]["turns"], strict=True)
    return quartiles([a / b for a, b in turns])


def _median(entry: Record) -> float:
    return statistics.median(entry["train"]["turns"])


def _record(record: Record) -> list[str]:
    title = f"### {record['row']}: {record['title']}{_theta(record, ' = ')}, tolerance {record['tolerance']:.0e}"
    rows = [_cells(name, entry, record) for name, entry in record["contenders"].items()]
    failed = [name for name, tried in record["tried"].items() if name not in record["contenders"] and tried]
    rows += [[name, "none of its settings reaches the tolerance", *[""] * (len(HEAD) - 2)] for name in failed]
    rows += [[name, reason, *[""] * (len(HEAD) - 2)] for name, reason in record["failures"].items()]
    return [title, "", *_table(HEAD, rows), ""]


def _theta(record: Record, equals: str) -> str:
    """The theta of the layers, for a title; equilibrium layers have none."""
    return "" if record["theta"] is None else f", theta{equals}{record['theta']:g}"


def _cells(name: str, entry: Record, record: Record) -> list[str]:
    base = record["contenders"][REFERENCE]["peak_bytes"]
    cells = [_label(name, record)]
    for kind in ("train", "infer"):
        cells += [_time(entry[kind]["seconds"][1]), _spread(entry[kind]["ratio"])]
    cells.append(f"{entry['peak_bytes'] / base:.2f}x" if "peak_bytes" in entry else "")
    cells += [f"{entry[key]:.0e}" if key in entry else "" for key in ("residual", "gradient_error")]
    if not _accurate(entry, record):
        cells[-2] = f"**{cells[-2]}**"
    return cells


def _accurate(entry: Record, record: Record) -> bool:
    return bool(entry.get("residual", 0.0) <= ROOM * record["tolerance"])


def _label(name: str, record: Record) -> str:
    """The name, with the fastest settings of a peer."""
    fit = [each for each in record["tried"].get(name, []) if each["fit"]]
    return f"{name} ({min(fit, key=lambda each: each['seconds'])['setting']})" if fit else name


def _growth(axis: str, points: Sequence[Record]) -> list[str]:
    rows = [
        [f"{point['value']:g}", _time(point["seconds"][OWN][1]), _spread(point["ratio"]), f"{point['iterations']:.1f}"]
        if "ratio" in point
        else [f"{point['value']:g}", point["failure"], "", ""]
        for point in points
    ]
    return [f"### B5: {axis}", "", *_table((axis, "training step", "x explicit", "iterations"), rows), ""]


def _memory(points: Sequence[Record]) -> list[str]:
    names = list(points[0]["bytes"])
    cells = [
        [f"{point['bytes'][name] / 1e6:.3g} MB" if point["bytes"][name] else "failed" for name in names]
        for point in points
    ]
    rows = [[f"{point['value']}", *row] for point, row in zip(points, cells, strict=True)]
    return ["### B5: peak memory of a training step", "", *_table(("layers", *names), rows), ""]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _spread(values: Sequence[float]) -> str:
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
