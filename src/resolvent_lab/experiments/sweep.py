"""Many runs in parallel processes, each with its progress."""

import queue
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from resolvent_lab.experiments.network import Config
from resolvent_lab.experiments.results import Failure, note_of, write_note
from resolvent_lab.experiments.run import OnEpoch, is_finished, train

Task = tuple[str, Config]
"""The name of an experiment, and the configuration of a run of it."""

# Reports a run; in between it is left alone.
_REPORTS = 100
_REFRESH = 0.2


class SweepError(RuntimeError):
    """Some runs of a sweep failed."""


def sweep(tasks: Sequence[Task], out: Path, jobs: int) -> None:
    """Train what is missing.

    Ctrl-C lets no further run begin, ends those that are under way, and keeps what was finished. A run that fails
    does not keep the others from being finished; it leaves a note of what went wrong, and in the end it is an error.

    Arguments:
        tasks: the runs; those that take longest come first, so that none of them is left to run alone in the end.
        out: folder of the results.
        jobs: processes.
    """
    if jobs < 1:
        raise ValueError(f"jobs counts processes and must be 1 or more, got {jobs}.")
    missing = [task for task in tasks if not is_finished(*task, out)]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are finished already")
    if not missing:
        return
    failures = _one_by_one(missing, out) if jobs == 1 else _in_parallel(missing, out, min(jobs, len(missing)))
    if failures:
        raise SweepError(f"{len(failures)} of {len(missing)} runs failed:\n" + "\n".join(map(str, failures)))


def _one_by_one(tasks: Sequence[Task], out: Path) -> list[Failure]:
    failures = []
    with _Bars(len(tasks), 1) as bars:
        for task in tasks:

            def on_epoch(epoch: int, task: Task = task) -> bool:
                bars.advance(task, epoch)
                return True

            failures.append(_attempt(task, out, on_epoch))
            bars.finish(task)
    return [failure for failure in failures if failure]


def _in_parallel(tasks: Sequence[Task], out: Path, jobs: int) -> list[Failure]:
    failures = []
    context = get_context("spawn")
    reports, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_enter, initargs=(reports, stop))
    with _Bars(len(tasks), jobs) as bars, pool:
        # Processes begin with the first tasks, and inherit that they ignore Ctrl-C: the parent decides what it means.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        waiting: dict[Future[Failure | None], Task] = {pool.submit(_work, task, out): task for task in tasks}
        signal.signal(signal.SIGINT, handler)
        try:
            while waiting:
                done, _ = wait(waiting, timeout=_REFRESH, return_when=FIRST_COMPLETED)
                _drain(reports, bars)
                for future in done:
                    task = waiting.pop(future)
                    failures.append(future.result())
                    bars.finish(task)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [failure for failure in failures if failure]


def _drain(reports: Any, bars: "_Bars") -> None:
    while True:
        try:
            bars.advance(*reports.get_nowait())
        except queue.Empty:
            return


# What a process was given when it began: a queue and an event can be inherited, but not sent with a task.
_shared: dict[str, Any] = {}


def _enter(reports: Any, stop: Any) -> None:
    _shared.update(reports=reports, stop=stop)


def _attempt(task: Task, out: Path, on_epoch: OnEpoch) -> Failure | None:
    """Train; what went wrong, if anything. As text, since not every exception can be sent to another process."""
    try:
        if train(*task, out, on_epoch):
            note_of(*task, out).unlink(missing_ok=True)
    except Exception as error:
        failure = Failure(*task, f"{type(error).__name__}: {error}")
        write_note(failure, out)
        return failure
    return None


def _work(task: Task, out: Path) -> Failure | None:
    every = max(1, task[1].epochs // _REPORTS)

    def on_epoch(epoch: int) -> bool:
        if epoch % every == 0:
            _shared["reports"].put((task, epoch))
        return not _shared["stop"].is_set()

    return _attempt(task, out, on_epoch)


class _Bars:
    """A bar for the sweep and below it one for each run that is under way; a line a run where there is no terminal."""

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
