"""The command `bench`."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.command import Command, add_out, number

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

PAGE = "tables.md"


def _arguments(parser: "ArgumentParser") -> None:
    parser.add_argument("--rows", type=str, help="such as B1,B2; all by default")
    parser.add_argument("--kinds", type=str, help="of eager,compiled,graph; all by default")
    parser.add_argument("--peers", type=str, default="", help="other libraries, such as torchdeq,torchdiffeq,jax")
    parser.add_argument("--peers-from", type=Path, default=Path("benchmarks/peers"), help="folder of their files")
    parser.add_argument("--skip", type=str, default="", help="leave out our contenders with these words in the name")
    parser.add_argument("--theta", type=number, nargs="+", help="of theta layers; 0.5 and 1 by default")
    parser.add_argument("--device", type=str, default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of every contender, on the CPU")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=0.15, help="approximate length of a turn")
    parser.add_argument(
        "--from",
        dest="given",
        type=Path,
        nargs="+",
        help="show these results together; measure nothing; later ones win",
    )
    parser.add_argument("--write", type=Path, help="page of the documentation to put the summary into")
    add_out(parser, "build/bench", "folder for results, tables and plots; build/bench by default")


def _run(out: Path, given: list[Path] | None, write: Path | None, **options: Any) -> None:
    """Measures, and writes results.json, tables.md and, if matplotlib is installed, the plots."""
    from resolvent_lab.bench.aims import summary
    from resolvent_lab.bench.markdown import write_between_markers
    from resolvent_lab.bench.records import RESULTS, merged, read, save
    from resolvent_lab.bench.tables import tables

    results = merged(read(path) for path in given) if given else _measure(out, **options)
    out.mkdir(parents=True, exist_ok=True)
    save(results, out)
    results = read(out / RESULTS)  # The pages are made of what was saved, with the same digits.
    (out / PAGE).write_text(tables(results))
    if write:
        write_between_markers(write, summary(results))
    if results["growth"]:
        _draw(results["growth"], out)


BENCH = Command(
    "bench", "Measure the cost of implicit layers, beside other libraries: time, memory, accuracy.", _arguments, _run
)


def _measure(
    out: Path,
    rows: str | None,
    kinds: str | None,
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

    from resolvent_lab.bench.contender import KINDS
    from resolvent_lab.bench.growth import growth
    from resolvent_lab.bench.records import save
    from resolvent_lab.bench.rows import GROWTH, NAMES, THETAS, tasks
    from resolvent_lab.bench.suite import Effort, run
    from resolvent_lab.bench.tables import tables

    chosen, taken = _choice(rows, NAMES, "row"), _choice(kinds, KINDS, "kind")
    torch.set_num_threads(threads)
    # TF32 has too few digits: no contender would reach the tolerance.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    machine = _machine(device, threads)
    absent: list[str] = []
    modules = _load_peers(_words(peers), peers_from, absent)
    results: dict[str, Any] = {"records": [], "growth": {}}
    out.mkdir(parents=True, exist_ok=True)
    for task in (task for row in chosen for task in tasks(row, theta or THETAS, device)):
        record = run(task, modules, Effort(rounds, seconds), taken, _words(skip))
        record |= {"machine": machine, "absent": absent}
        results["records"].append(record)
        save(results, out)
        print(tables({"records": [record], "growth": {}}), flush=True)
    if GROWTH in chosen:

        def keep(series: dict[str, Any]) -> None:
            results["growth"] = {"machine": machine, **series}
            save(results, out)

        growth(device, min(5, rounds), seconds, save=keep)
    return results


def _choice(text: str | None, known: Sequence[str], what: str) -> list[str]:
    chosen = list(known) if text is None else _words(text)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"there is no {what} {unknown[0]!r}: choose among {', '.join(known)}.")
    return chosen


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


def _draw(series: dict[str, Any], out: Path) -> None:
    from resolvent_lab.bench.plots import draw

    try:
        print("wrote", *draw(series, out))
    except ImportError:
        print(f"matplotlib is not installed: draw elsewhere with resolvent bench --from {out / 'results.json'}")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _machine(device: str, threads: int) -> str:
    import torch

    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{threads} CPU thread(s)"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"
