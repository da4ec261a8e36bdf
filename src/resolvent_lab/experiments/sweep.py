"""Sweeps: many runs in parallel processes, with progress bars."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from resolvent_lab.command import CommandError
from resolvent_lab.experiments.processes import ctrl_c_blocked, send, workers
from resolvent_lab.experiments.progress import Progress, Task
from resolvent_lab.experiments.results import Failure, note_of, write_note
from resolvent_lab.experiments.run import is_finished
from resolvent_lab.experiments.train import OnEpoch, train
from resolvent_lab.lock import exclusive

_REPORTS_PER_RUN = 100
_REFRESH_SECONDS = 0.2


class SweepError(CommandError):
    """Some runs of a sweep failed."""


def sweep(tasks: Sequence[Task], out: Path, jobs: int, verbose: bool = False) -> None:
    """Trains the runs that are missing.

    An exception, such as `Interrupted`, ends all runs at once; finished runs are kept. A run that fails does not stop
    the others. It leaves a note with its error, and SweepError is raised at the end.

    Arguments:
        tasks: the runs. Put the longest first, so that none of them runs alone at the end.
        out: folder of the results.
        jobs: number of processes.
        verbose: whether to show the progress of each run, not only of all together.
    """
    if jobs < 1:
        raise ValueError(f"jobs is a number of processes and must be 1 or more, got {jobs}.")
    with exclusive(out):
        missing = [task for task in tasks if not is_finished(*task, out)]
        print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are finished already", flush=True)
        if not missing:
            return
        with Progress(missing, verbose) as progress:
            if jobs == 1:
                failures = _one_by_one(missing, out, progress)
            else:
                failures = _in_parallel(missing, out, min(jobs, len(missing)), progress)
    if failures:
        raise SweepError(f"{len(failures)} of {len(missing)} runs failed:\n" + "\n".join(map(str, failures)))


def _one_by_one(tasks: Sequence[Task], out: Path, progress: Progress) -> list[Failure]:
    failures = []
    for task in tasks:

        def on_epoch(epoch: int, task: Task = task) -> None:
            progress.advance(task, epoch)

        failures.append(_attempt(task, out, on_epoch))
        progress.finish(task)
    return [failure for failure in failures if failure]


def _in_parallel(tasks: Sequence[Task], out: Path, jobs: int, progress: Progress) -> list[Failure]:
    failures = []
    with workers(jobs) as started:
        with ctrl_c_blocked():
            waiting: dict[Future[Failure | None], Task] = {
                started.pool.submit(_work, task, out): task for task in tasks
            }
        while waiting:
            done, _ = wait(waiting, timeout=_REFRESH_SECONDS, return_when=FIRST_COMPLETED)
            for task, epoch in started.messages():
                progress.advance(task, epoch)
            for future in done:
                task = waiting.pop(future)
                failures.append(future.result())
                progress.finish(task)
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
    every, sent = max(1, task[1].epochs // _REPORTS_PER_RUN), -task[1].epochs

    def on_epoch(epoch: int) -> None:
        nonlocal sent
        if epoch - sent >= every:
            send((task, epoch))
            sent = epoch

    return _attempt(task, out, on_epoch)
