"""`Progress`: bars for a sweep, with the time that is left."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from resolvent_lab.experiments.network import RunConfig

Task = tuple[str, RunConfig]
"""The name of an experiment, and the configuration of a run."""

_FORMAT = "{desc}: {percentage:3.0f}% |{bar}| {elapsed} so far, {remaining} left{postfix}"
_LINES_PER_RUN = 10


class Progress:
    """A bar for all runs of a sweep, which counts their epochs; with `verbose` one for each run in progress, too.

    Without a terminal it prints a line for each finished run, and with `verbose` ten for each run.

    Arguments:
        tasks: the runs.
        verbose: whether to show each run.
    """

    def __init__(self, tasks: Sequence[Task], verbose: bool = False) -> None:
        self.verbose, self.terminal = verbose, sys.stderr.isatty()
        self.runs, self.finished = len(tasks), 0
        # A run is one unit, whatever the number of its epochs: runs of one sweep mostly take equally long.
        self.shares: dict[Task, float] = {}
        # What had been done of a run when it began here. Only the rest tells how fast it goes.
        self.begun: dict[Task, float] = {}
        self.bars: dict[Task, tqdm[Any]] = {}
        self.first: float | None = None
        self.total = tqdm(total=self.runs, desc=f"{self.runs} runs", bar_format=_FORMAT, disable=not self.terminal)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        for bar in (*self.bars.values(), self.total):
            bar.close()

    def advance(self, task: Task, epoch: int) -> None:
        """A run has done some epochs. The first call for a run says where it begins."""
        share = min(1.0, epoch / task[1].epochs)
        if task not in self.begun:
            self._begin(task, share)
        before = self.shares[task]
        self.shares[task] = share
        self.total.update(share - before)
        if self.verbose:
            self._show(task, epoch, before, share)

    def _begin(self, task: Task, share: float) -> None:
        if self.first is None:  # the time for starting processes does not count
            self.first = time.monotonic()
        self.begun[task] = self.shares[task] = share
        if self.terminal:
            self.total.initial += share
            self.total.n += share

    def finish(self, task: Task) -> None:
        """A run has ended, well or not."""
        self.total.update(1 - self.shares.get(task, 0.0))
        self.shares[task] = 1.0
        self.finished += 1
        bar = self.bars.pop(task, None)
        if bar is not None:
            bar.close()
        if self.terminal:
            self.total.set_postfix_str(f"{self.finished} of {self.runs} runs finished")
        else:
            print(f"{self.finished} of {self.runs} runs finished, {self._left()}: {name_of(task)}", flush=True)

    def _show(self, task: Task, epoch: int, before: float, share: float) -> None:
        if not self.terminal:
            if int(before * _LINES_PER_RUN) < int(share * _LINES_PER_RUN) < _LINES_PER_RUN:
                print(f"{name_of(task)}: epoch {epoch} of {task[1].epochs}, {self._left()}", flush=True)
            return
        if task not in self.bars:
            self.bars[task] = tqdm(total=task[1].epochs, desc=name_of(task), unit="epoch", leave=False, initial=epoch)
        self.bars[task].update(epoch - self.bars[task].n)

    def _left(self) -> str:
        """The time that is left, if the rest goes as fast as what was done here."""
        done = sum(self.shares.values())
        here = done - sum(self.begun.values())
        if self.first is None or here <= 0:
            return "time left unknown"
        return f"about {tqdm.format_interval((time.monotonic() - self.first) * (self.runs - done) / here)} left"


def name_of(task: Task) -> str:
    return f"{task[0]} {task[1].name}"
