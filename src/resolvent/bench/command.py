"""The options of `resolvent bench`, read by the standard library: it needs nothing but torch and the peers."""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from resolvent.bench.peers import load
from resolvent.bench.rows import ROWS, THETAS
from resolvent.bench.suite import Effort, run
from resolvent.bench.tables import markdown, write_between_markers


def main(args: Sequence[str] | None = None) -> None:
    """Read the options, measure, and write results.json and table.md."""
    options = _parser().parse_args(args)
    torch.set_num_threads(options.threads)
    try:
        peers = {name: module for name in options.peers if (module := _peer(name, options.peers_from))}
        rows = _rows(options.rows)
    except ValueError as error:
        sys.exit(f"resolvent: {error}")
    results: dict[str, Any] = {"machine": _machine(options.device, options.threads), "rows": []}
    options.out.mkdir(parents=True, exist_ok=True)
    for make, theta in product([make for row in rows for make in ROWS[row]], options.theta):
        record = run(make(theta, options.device), peers, Effort(options.rounds, options.seconds))
        results["rows"].append(record)
        (options.out / "results.json").write_text(json.dumps(results, indent=1))
        print(markdown({**results, "rows": [record]}), flush=True)
    (options.out / "table.md").write_text(markdown(results))
    if options.write:
        write_between_markers(options.write, markdown(results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("resolvent bench", description="Measure what implicitness costs.")
    parser.add_argument("--rows", default=list(ROWS), help=f"among {','.join(ROWS)}", type=_words)
    parser.add_argument("--peers", default=[], help="other libraries, such as torchdeq,torchdiffeq,jax", type=_words)
    parser.add_argument("--peers-from", type=Path, default=Path("benchmarks/peers"), help="folder of their files")
    parser.add_argument("--theta", type=float, nargs="+", default=list(THETAS), help="of the layers")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of every contender, on the CPU")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=Effort.seconds, help="that a turn takes, about")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for results.json and table.md")
    parser.add_argument("--write", type=Path, help="a page of the documentation that gets the table")
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _rows(names: Sequence[str]) -> list[str]:
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise ValueError(f"there is no row {unknown[0]!r}: choose among {', '.join(ROWS)}.")
    return list(names)


def _peer(name: str, folder: Path) -> ModuleType | None:
    try:
        return load(name, folder)
    except ImportError as error:
        print(f"without {name}, which is not installed here ({error})", file=sys.stderr)
        return None


def _machine(device: str, threads: int) -> str:
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{threads} CPU thread(s)"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"
