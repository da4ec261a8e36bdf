"""The command `bench`."""

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.command import Command, add_out, number

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

GROWTH = "B5"


def _arguments(parser: "ArgumentParser") -> None:
    parser.add_argument("--rows", type=str, help="such as B1,B2; all by default")
    parser.add_argument("--peers", type=str, default="", help="other libraries, such as torchdeq,torchdiffeq,jax")
    parser.add_argument("--peers-from", type=Path, default=Path("benchmarks/peers"), help="folder of their files")
    parser.add_argument("--skip", type=str, default="", help="leave out our contenders with these words in the name")
    parser.add_argument("--theta", type=number, nargs="+", help="of theta layers; 0.5 and 1 by default")
    parser.add_argument("--device", type=str, default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of every contender, on the CPU")
    parser.add_argument("--rounds", type=int, default=15, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=0.3, help="approximate length of a turn")
    parser.add_argument("--from", dest="given", type=Path, nargs="+", help="show these results; measure nothing")
    parser.add_argument("--write", type=Path, help="page of the documentation to put the table into")
    add_out(parser, "build/bench", "folder for results, table and plots; build/bench by default")


def _run(out: Path, given: list[Path] | None, write: Path | None, **options: Any) -> None:
    """Measures, and writes results.json, table.md and, if matplotlib is installed, the plots."""
    from resolvent_lab.bench.tables import markdown, write_between_markers

    runs = [_read(path) for path in given] if given else [_measure(out, **options)]
    text = "\n".join(markdown(each) for each in runs)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(text)
    if write:
        write_between_markers(write, text)
    for each in runs:
        if "growth" in each:
            _draw(each, out)


BENCH = Command(
    "bench", "Measure the cost of implicit layers, beside other libraries: time, memory, accuracy.", _arguments, _run
)


def _measure(
    out: Path,
    rows: str | None,
    peers: str,
    peers_from: Path,
    skip: str,
    theta: list[float] | None,
    device: str,
    threads: int,
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    import torch

    from resolvent_lab.bench.growth import growth
    from resolvent_lab.bench.rows import EQUILIBRIA, ROWS, THETAS, tasks
    from resolvent_lab.bench.suite import Effort, run
    from resolvent_lab.bench.tables import markdown

    known = sorted((*ROWS, *EQUILIBRIA, GROWTH))
    chosen = known if rows is None else _words(rows)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"there is no row {unknown[0]!r}: choose among {', '.join(known)}.")
    torch.set_num_threads(threads)
    # TF32 has too few digits: no contender would reach the tolerance.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {"machine": _machine(device, threads), "absent": [], "rows": []}
    modules = _load_peers(_words(peers), peers_from, results["absent"])
    out.mkdir(parents=True, exist_ok=True)
    for task in (task for row in chosen for task in tasks(row, theta or THETAS, device)):
        record = run(task, modules, Effort(rounds, seconds), _words(skip))
        results["rows"].append(record)
        _save(results, out)
        print(markdown({**results, "rows": [record]}), flush=True)
    if GROWTH in chosen:

        def save(series: dict[str, Any]) -> None:
            results["growth"] = series
            _save(results, out)

        growth(device, min(5, rounds), seconds, save=save)
    return results


def _load_peers(names: list[str], folder: Path, absent: list[str]) -> dict[str, Any]:
    """The modules of other libraries by name. Those that are not installed are added to `absent`."""
    from resolvent_lab.bench.peers import load

    modules = {}
    for name in names:
        try:
            modules[name] = load(name, folder)
        except ImportError as error:
            absent.append(f"{name}: {error}")
    return modules


def _read(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the results in {path}: {error}") from None
    return results


def _save(results: dict[str, Any], out: Path) -> None:
    (out / "results.json").write_text(json.dumps(results, indent=1))


def _draw(results: dict[str, Any], out: Path) -> None:
    from resolvent_lab.bench.plots import draw

    try:
        print("wrote", *draw(results, out))
    except ImportError:
        print(f"matplotlib is not installed: draw elsewhere with resolvent bench --from {out / 'results.json'}")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _machine(device: str, threads: int) -> str:
    import torch

    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{threads} CPU thread(s)"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"
