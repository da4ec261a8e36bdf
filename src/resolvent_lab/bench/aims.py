"""The summary: what an implicit layer costs, beside what is aimed at, and other libraries beside this one."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resolvent_lab.bench.markdown import spread, table
from resolvent_lab.bench.records import OURS, accurate, cost, memory, ratio

Record = dict[str, Any]
OWN = "resolvent, own network"
GRAPH = "resolvent, CUDA graph"


@dataclass(frozen=True)
class Aim:
    """A limit for the cost of a contender relative to the explicit network of the same kind.

    Attributes:
        text: the line of the table.
        limit: the aim on a CPU and on a GPU, or one for both; None shows the measurement alone.
        row: of the benchmark.
        contender: its name.
        what: "train", "infer" or "memory".
        title: a part of the titles of the tasks.
        tolerance: of the tasks; None takes all.
        other: the contender it is compared with instead of the explicit network.
    """

    text: str
    limit: float | tuple[float, float] | None
    row: str
    contender: str = OURS
    what: str = "train"
    title: str = ""
    tolerance: float | None = None
    other: str | None = None

    @property
    def kind(self) -> str:
        if self.what == "memory":
            return "peak memory"
        return "graph" if "graph" in self.contender else "compiled" if "compile" in self.contender else "eager"

    def limit_on(self, machine: str) -> float | None:
        return self.limit["CPU" not in machine] if isinstance(self.limit, tuple) else self.limit

    def fits(self, record: Record) -> bool:
        same = record["row"] == self.row and record["title"].endswith(self.title)
        return same and self.tolerance in (None, record["tolerance"])

    def asked(self, record: Record) -> bool:
        """Whether the contender took part, or failed to."""
        return self.contender in record["contenders"] or self.contender in record["failures"]

    def measured(self, record: Record) -> list[float] | None:
        """Lower quartile, median and upper quartile; None if it was not measured to the tolerance."""
        entry = record["contenders"].get(self.contender)
        if entry is None or not accurate(record, self.contender):
            return None
        if self.what == "memory":
            value = memory(record, self.contender)
            return None if value is None else [value] * 3
        if self.other is None:
            return cost(record, self.contender, self.what)
        other = record["contenders"].get(self.other)
        return ratio(entry, other, self.what) if other else None


AIMS = (
    *(Aim(f"own network, nothing declared, {row}", 3, row, OWN) for row in ("B1", "B2")),
    *(Aim(f"own network, `rowwise=True`, {row}", 3, row, f"{OWN}, rowwise=True") for row in ("B1", "B2")),
    *(Aim(f"`rs.fields.MLP`, {row}", 3, row) for row in ("B1", "B2")),
    *(Aim(f"own network, layer by layer, {row}", 4, row, f"{OWN}, layer by layer") for row in ("B1", "B2")),
    *(Aim(f"own networks of many kinds, {n} unknowns, {w}, {f}, B8", 3, "B8", title=f"{n} unknowns, {w}, {f}")
      for n in (2, 16) for w in ("as drawn", "trained") for f in ("nn.Sequential", "a forward of its own")),
    *(Aim(f"five layers in the plane, {count} samples, B9", 2.5, "B9", title=f"{count} samples")
      for count in (512, 2048, 8192)),
    *(Aim(f"8 to 256 unknowns, {which}, B10", 3, "B10", title=f", {which}")
      for which in ("64 samples", "256 samples", "64 samples, trained", "64 samples, 16 layers",
                    "64 samples, trained, 16 layers")),
    Aim("own convolutions, tolerance 1e-6, B7", 3.5, "B7", tolerance=1e-6),
    Aim("own convolutions, tolerance 1e-3, B7", 2.2, "B7", tolerance=1e-3),
    *(Aim(f"fields of one's own that decay, {which}, B12", None, "B12", title=f"decaying {which}")
      for which in ("perceptrons", "convolutions", "attention")),
    Aim("ResNet-18, B3", 1.8, "B3"),
    Aim("64 channels, B4", 1.8, "B4", title="channels"),
    Aim("64 channels, bfloat16, B4", 1.8, "B4", title="bfloat16"),
    Aim("ResNet-18, inference, B3", (2, 2.5), "B3", what="infer"),
    Aim("the recommended recipe with penalty, B11", 2, "B11"),
    Aim("equilibrium of a transformer block, B6", None, "B6"),
    *(Aim(f'`mode="compiled"`, {row}', None, row, 'resolvent, mode="compiled"') for row in ("B1", "B2")),
    *(Aim(f'`mode="compiled"`, 8 to 256 unknowns, {which}, B10', 3, "B10", 'resolvent, mode="compiled"',
          title=f", {which}") for which in ("64 samples", "64 samples, trained")),
    *(Aim(f'`mode="compiled"`, five layers in the plane, {count} samples, B9', 2.5, "B9",
          'resolvent, mode="compiled"', title=f"{count} samples") for count in (512, 2048, 8192)),
    *(Aim(f'`mode="compiled"`, {n} unknowns, {w}, {f}, B8', 3, "B8", 'resolvent, mode="compiled"',
          title=f"{n} unknowns, {w}, {f}")
      for n in (2, 16) for w in ("as drawn", "trained") for f in ("nn.Sequential", "a forward of its own")),
    *(Aim(f'`mode="compiled"` / JAX, {row}', 1, row, 'resolvent, mode="compiled"', other="jax")
      for row in ("B1", "B2")),
    Aim("own convolutions under torch.compile, tolerance 1e-3, B7", None, "B7", "resolvent, torch.compile",
        tolerance=1e-3),
    Aim("ResNet-18 under torch.compile, B3", None, "B3", "resolvent, torch.compile"),
    Aim("ResNet-18, B3", 1.5, "B3", GRAPH),
    Aim("ResNet-18, inference, B3", None, "B3", GRAPH, "infer"),
    Aim("own convolutions, tolerance 1e-6, B7", 3.5, "B7", GRAPH, tolerance=1e-6),
    Aim("own convolutions, tolerance 1e-3, B7", 2.2, "B7", GRAPH, tolerance=1e-3),
    Aim("64 channels, B4", 1.5, "B4", GRAPH, title="channels"),
    Aim("64 channels, bfloat16, B4", 1.5, "B4", GRAPH, title="bfloat16"),
    Aim("the recommended recipe with penalty, 12 steps, B11", 2, "B11", f"{GRAPH} of 12 steps"),
    Aim("the recommended recipe with penalty, numbers of steps learned, B11", 2, "B11", GRAPH),
    *(Aim(text, 1.25, row, name, "memory") for text, row, name in (
        ("own network, B1", "B1", OWN), ("own network, B2", "B2", OWN), ("ResNet-18, B3", "B3", OURS),
        ("own convolutions, B7", "B7", OURS), ("own networks of many kinds, B8", "B8", OURS),
        ("large batches, B9", "B9", OURS), ("8 to 256 unknowns, B10", "B10", OURS),
        ("the recommended recipe, eager, B11", "B11", OURS),
        ('`mode="compiled"`, B1', "B1", 'resolvent, mode="compiled"'),
        ('`mode="compiled"`, B2', "B2", 'resolvent, mode="compiled"'))),
    Aim("64 channels, B4", 1.25, "B4", what="memory", title="channels"),
    Aim("64 channels, bfloat16, B4", 1.25, "B4", what="memory", title="bfloat16"),
    Aim("the recommended recipe, CUDA graph, B11", 1.25, "B11", GRAPH, "memory"),
)  # fmt: skip


def summary(results: Record) -> str:
    """The tables of aims and of other libraries, for each machine."""
    lines: list[str] = []
    for machine in dict.fromkeys(record["machine"] for record in results["records"]):
        records = [record for record in results["records"] if record["machine"] == machine]
        rows = [cells for aim in AIMS if (cells := _cells(aim, records, machine))]
        head = ("kind", "a training step / the explicit one of the same kind", "aim", "measured", "")
        lines += [f"Measured with {machine}.", "", *table(head, rows), "", *_peers(records)]
    return "\n".join(lines).rstrip() + "\n"


def _cells(aim: Aim, records: Sequence[Record], machine: str) -> list[str]:
    """One line: the medians for each theta. None if nothing of it was measured."""
    groups: dict[float | None, list[Record]] = {}
    for record in filter(aim.fits, records):
        groups.setdefault(record["theta"], []).append(record)
    found = [_over_networks(aim, group) for group in groups.values()]
    if not any(found):
        return []
    limit = aim.limit_on(machine)
    # A network that was not solved to the tolerance misses the aim.
    complete = all(aim.measured(record) for group in groups.values() for record in filter(aim.asked, group))
    within = complete and all(values is not None and limit is not None and values[1] <= limit for values in found)
    verdict = "" if limit is None else "met" if within else "**missed**"
    measured = ", ".join(_shown(values) for values in found) + ("" if complete else "; not all to the tolerance")
    return [aim.kind, aim.text, "" if limit is None else f"{limit:g}", measured, verdict]


def _shown(values: Sequence[float] | None) -> str:
    if values is None:
        return "not measured"
    low, middle, high = values
    return f"{middle:.2f}" if low == high else spread(values)


def _over_networks(aim: Aim, records: Sequence[Record]) -> list[float] | None:
    """For one task the quartiles over the rounds, for several the median over them, the least and the largest."""
    found = [values for record in records if (values := aim.measured(record))]
    if len(found) < 2:
        return found[0] if found else None
    medians = [middle for _, middle, _ in found]
    return [min(medians), statistics.median(medians), max(medians)]


def _peers(records: Sequence[Record]) -> list[str]:
    """The times of other libraries relative to our fastest contender of the same kind, both to the tolerance."""
    names = list(dict.fromkeys(name for record in records for name in record["tried"]))
    rows = []
    for record in records:
        cells = [_beside(record, name) for name in names]
        if any(cells):
            theta = "" if record["theta"] is None else f", theta = {record['theta']:g}"
            rows.append([f"{record['row']} {record['title']}{theta}", *cells])
    return [*table(("training step", *(f"{name} / ours" for name in names)), rows), ""] if rows else []


def _beside(record: Record, name: str) -> str:
    entries = record["contenders"]
    if name not in entries or not accurate(record, name):
        return ""
    ours = [
        each
        for key, each in entries.items()
        if key.startswith(OURS) and each["kind"] == entries[name]["kind"] and accurate(record, key)
    ]
    if not ours:
        return ""
    fastest = min(ours, key=lambda each: statistics.median(each["train"]))
    return spread(ratio(entries[name], fastest, "train"))
