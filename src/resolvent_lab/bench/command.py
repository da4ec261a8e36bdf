"""The options of `resolvent bench`, read by the standard library: it needs nothing but torch and the peers."""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from resolvent_lab.bench.growth import growth
from resolvent_lab.bench.peers import load
from resolvent_lab.bench.plots import draw
from resolvent_lab.bench.rows import ROWS, THETAS
from resolvent_lab.bench.suite import Effort, run
from resolvent_lab.bench.tables import markdown, write_between_markers

GROWTH = "B5"


def main(args: Sequence[str] | None = None) -> None:
    """Read the options, measure, and write results.json, table.md and, where matplotlib is installed, the plots."""
    options = _parser().parse_args(args)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        runs = [json.loads(path.read_text()) for path in options.given] if options.given else [_measure(options)]
    except ValueError as error:
        sys.exit(f"resolvent: {error}")
    text = "\n".join(markdown(each) for each in runs)
    (options.out / "table.md").write_text(text)
    if options.write:
        write_between_markers(options.write, text)
    for each in runs:
        if "growth" in each:
            _draw(each, options.out)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    unknown = [name for name in options.rows if name not in (*ROWS, GROWTH)]
    if unknown:
        raise ValueError(f"there is no row {unknown[0]!r}: choose among {', '.join((*ROWS, GROWTH))}.")
    torch.set_num_threads(options.threads)
    # Single precision means that: with fewer digits in its products no contender reaches the tolerance.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {"machine": _machine(options.device, options.threads), "absent": [], "rows": []}
    peers = {}
    for name in options.peers:
        try:
            peers[name] = load(name, options.peers_from)
        except ImportError as error:
            results["absent"].append(f"{name}: {error}")
    effort = Effort(options.rounds, options.seconds)
    makes = [make for row in options.rows if row != GROWTH for make in ROWS[row]]
    for make, theta in product(makes, options.theta):
        record = run(make(theta, options.device), peers, effort, options.skip)
        results["rows"].append(record)
        _save(results, options.out)
        print(markdown({**results, "rows": [record]}), flush=True)
    if GROWTH in options.rows:

        def save(series: dict[str, Any]) -> None:
            results["growth"] = series
            _save(results, options.out)

        growth(options.device, min(5, effort.rounds), effort.seconds, save=save)
    return results


def _save(results: dict[str, Any], out: Path) -> None:
    (out / "results.json").write_text(json.dumps(results, indent=1))


def _draw(results: dict[str, Any], out: Path) -> None:
    try:
        print("wrote", *draw(results, out))
    except ImportError:
        print(f"no matplotlib here: draw elsewhere with resolvent bench --from {out / 'results.json'}")


def _parser() -> argparse.ArgumentParser:
    rows = [*ROWS, GROWTH]
    parser = argparse.ArgumentParser("resolvent bench", description="Measure what implicitness costs.")
    parser.add_argument("--rows", type=_words, default=rows, help=f"among {','.join(rows)}; all by default")
    parser.add_argument("--peers", type=_words, default=[], help="other libraries, such as torchdeq,torchdiffeq,jax")
    parser.add_argument("--peers-from", type=Path, default=Path("benchmarks/peers"), help="folder of their files")
    parser.add_argument("--skip", type=_words, default=[], help="words in the names of our own contenders to leave out")
    parser.add_argument("--theta", type=float, nargs="+", default=list(THETAS), help="of the layers")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of every contender, on the CPU")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=Effort.seconds, help="that a turn takes, about")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for results, table and plots")
    parser.add_argument("--from", dest="given", type=Path, nargs="+", help="results to show instead of measuring")
    parser.add_argument("--write", type=Path, help="a page of the documentation that gets the table")
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _machine(device: str, threads: int) -> str:
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{threads} CPU thread(s)"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"
