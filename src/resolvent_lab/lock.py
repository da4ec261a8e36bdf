"""A folder for one process at a time."""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resolvent_lab import atomic
from resolvent_lab.command import CommandError

_LOCK, _HOLDER = ".lock", ".holder.json"


class FolderInUseError(CommandError):
    """Another process writes to the folder."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds a folder in this block. If another process does, raises an error that says which one.

    The operating system releases the lock when the process ends, also by kill -9.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUseError(
            f"{folder} is in use by {_holder(folder)}: wait for it, or take another --out."
        ) from None
    try:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = {"pid": os.getpid(), "host": platform.node(), "since": now}
        atomic.write(folder / _HOLDER, json.dumps(holder).encode())
        yield
    finally:
        (folder / _HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / _HOLDER).read_text())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError):  # it is just beginning or ending
        return "another process"
