"""Runs of a benchmark that leave a file each, in several processes, and tables of them in the docs."""

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).parent.parent / "docs"
Found = dict[str, Any]


def parser(description: str | None, seeds: int, out: str) -> argparse.ArgumentParser:
    """The options that all of these benchmarks have."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=seeds)
    found.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    found.add_argument("--out", type=Path, default=Path(out), help="folder for the runs")
    found.add_argument("--write", action="store_true", help="put the table into the docs")
    return found


def run_all(run: Callable[..., Found], combinations: Iterable[tuple[Any, ...]], out: Path, jobs: int) -> None:
    """Calls run(*combination) where it has not left its file yet. The first combinations start first."""
    out.mkdir(parents=True, exist_ok=True)
    missing = {_file(out, each): each for each in combinations if not _file(out, each).exists()}
    os.environ["OMP_NUM_THREADS"] = "1"  # Read by the new processes when they import torch.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        started = {pool.submit(run, *each): file for file, each in missing.items()}
        for done in as_completed(started):
            file, text = started[done], json.dumps(done.result())
            file.write_text(text)
            print(file.stem, text, flush=True)


def collect(combinations: Iterable[tuple[Any, ...]], out: Path) -> dict[tuple[Any, ...], list[Found]]:
    """The runs there are, by combination without its seed, which is its last entry."""
    found: dict[tuple[Any, ...], list[Found]] = {}
    for each in combinations:
        if _file(out, each).exists():
            found.setdefault(each[:-1], []).append(json.loads(_file(out, each).read_text()))
    return found


def show(table: str, page: str, mark: str, write: bool) -> None:
    """Prints a table and, if `write`, replaces what stands between the two marks in a page of the docs."""
    print(table)
    if not write:
        return
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    path = DOCS / page
    whole = path.read_text(encoding="utf-8")
    before, after = whole.split(begin)[0], whole.split(end)[1]
    path.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


def _file(out: Path, combination: tuple[Any, ...]) -> Path:
    parts = (f"{part:g}" if isinstance(part, float) else str(part) for part in combination)
    return out / f"{'_'.join(parts)}.json"
