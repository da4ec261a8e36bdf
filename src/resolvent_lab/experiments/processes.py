"""Worker processes. They leave Ctrl-C to their parent, and end when it ends, for whatever reason.

This module imports nothing heavy: a worker starts to watch its parent before it imports torch.
"""

import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

_CONTEXT = get_context("spawn")
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL


class Workers:
    """A pool of processes, and the messages that they send."""

    def __init__(self, jobs: int) -> None:
        self._messages = _CONTEXT.Queue()
        self.pool = ProcessPoolExecutor(jobs, _CONTEXT, initializer=_enter, initargs=(self._messages,))

    def messages(self) -> Iterator[Any]:
        """The messages that have arrived."""
        while True:
            try:
                yield self._messages.get_nowait()
            except queue.Empty:
                return


@contextmanager
def workers(jobs: int) -> Iterator[Workers]:
    """Starts a pool of processes. If the block raises, they are killed at once.

    Submit tasks within `ctrl_c_blocked`, so that the processes inherit that they do not see Ctrl-C.
    """
    others = set(active_children())
    started = Workers(jobs)
    try:
        yield started
    except BaseException:
        started.pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - others:
            process.kill()
        raise
    finally:
        started.pool.shutdown()


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block. Processes that start in the block never see it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# The queue of this worker. A queue can be given to a process when it starts, but cannot be sent with a task.
_queues: list[Any] = []


def send(message: Any) -> None:
    """Sends a message from a worker to its parent."""
    _queues[0].put(message)


def _enter(messages: Any) -> None:
    _queues.append(messages)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])  # ready when the parent has ended, even by kill -9
    os.kill(os.getpid(), _KILL)
