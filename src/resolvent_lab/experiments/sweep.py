"""Sweeps: many runs in parallel processes, with progress bars."""

import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from resolvent_lab.command import CommandError
from resolvent_lab.experiments.network import RunConfig
from resolvent_lab.experiments.processes import ctrl_c_blocked, send, workers
from resolvent_lab.experiments.results import Failure, note_of, write_note
from resolvent_lab.experiments.run import OnEpoch, is_finished, train

Task = tuple[str, RunConfig]
"""The name of an experiment, and the configuration of a run."""

_REPORTS_PER_RUN = 100
_REFRESH_SECONDS = 0.2


class SweepError(CommandError):
    """Some runs of a sweep failed."""


def sweep(tasks: Sequence[Task], out: Path, jobs: int) -> None:
    """Trains the runs that are missing.

    An exception, such as `Interrupted`, ends all runs at once; finished runs are kept. A run that fails does not stop
    the others. It leaves a note with its error, and SweepError is raised at the end.

    Arguments:
        tasks: the runs. Put the longest first, so that none of them runs alone at the end.
        out: folder of the results.
        jobs: number of processes.
    """
    if jobs < 1:
        raise ValueError(f"jobs is a number of processes and must be 1 or more, got {jobs}.")
    missing = [task for task in tasks if not is_finished(*task, out)]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are finished already", flush=True)
    if not missing:
        return
    failures = _one_by_one(missing, out) if jobs == 1 else _in_parallel(missing, out, min(jobs, len(missing)))
    if failures:
        raise SweepError(f"{len(failures)} of {len(missing)} runs failed:\n" + "\n".join(map(str, failures)))


def _one_by_one(tasks: Sequence[Task], out: Path) -> list[Failure]:
    failures = []
    with _Bars(len(tasks), 1) as bars:
        for task in tasks:

            def on_epoch(epoch: int, task: Task = task) -> None:
                bars.advance(task, epoch)

            failures.append(_attempt(task, out, on_epoch))
            bars.finish(task)
    return [failure for failure in failures if failure]


def _in_parallel(tasks: Sequence[Task], out: Path, jobs: int) -> list[Failure]:
    failures = []
    with _Bars(len(tasks), jobs) as bars, workers(jobs) as started:
        with ctrl_c_blocked():
            waiting: dict[Future[Failure | None], Task] = {
                started.pool.submit(_work, task, out): task for task in tasks
            }
        while waiting:
            done, _ = wait(waiting, timeout=_REFRESH_SECONDS, return_when=FIRST_COMPLETED)
            for task, epoch in started.messages():
                bars.advance(task, epoch)
            for future in done:
                task = waiting.pop(future)
                failures.append(future.result())
                bars.finish(task)
    return [failure for failure in failures if failure]


def _attempt(task: Task, out: Path, on_epoch: OnEpoch) -> Failure | None:
    """Trains one run. Returns the error as text, because not every exception can be sent to another process."""
    try:
        train(*task, out, on_epoch)
        note_of(*task, out).unlink(missing_ok=True)
    except Exception as error:
        failure = Failure(*task, f"{type(error).__name__}: {error}")
        write_note(failure, out)
        return failure
    return None


def _work(task: Task, out: Path) -> Failure | None:
    every = max(1, task[1].epochs // _REPORTS_PER_RUN)

    def on_epoch(epoch: int) -> None:
        if epoch % every == 0:
            send((task, epoch))

    return _attempt(task, out, on_epoch)


class _Bars:
    """A progress bar for the sweep and one for each run in progress. Without a terminal, one line per finished run."""

    def __init__(self, runs: int, jobs: int) -> None:
        self.silent = not sys.stderr.isatty()
        self.runs = runs
        self.total = tqdm(total=runs, desc="runs", unit="run", position=0, disable=self.silent)
        self.free = list(range(jobs, 0, -1))
        self.bars: dict[Task, tqdm[Any]] = {}

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *_: object) -> None:
        for bar in (*self.bars.values(), self.total):
            bar.close()

    def advance(self, task: Task, epoch: int) -> None:
        if task not in self.bars:
            experiment, config = task
            self.bars[task] = tqdm(
                total=config.epochs,
                desc=f"{experiment} {config.name}",
                unit="epoch",
                position=self.free.pop() if self.free else None,
                leave=False,
                disable=self.silent,
            )
        bar = self.bars[task]
        bar.update(epoch - bar.n)

    def finish(self, task: Task) -> None:
        bar = self.bars.pop(task, None)
        if bar is not None:
            if bar.pos:
                self.free.append(abs(bar.pos))
            bar.close()
        self.total.update()
        if self.silent:
            self.runs -= 1
            print(f"finished {task[0]} {task[1].name}; {self.runs} to go", flush=True)
