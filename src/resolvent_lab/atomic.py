"""Files that are complete or not there: written beside, flushed to the disk, and renamed."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Writes a file. If that fails or the process is killed, the file that was there before remains.

    Arguments:
        path: its folder is made if it does not exist.
        content: the bytes, or a function that writes them to a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".draft-{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def remove_drafts(folder: Path) -> None:
    """Removes what killed processes have left. No other process may write to the folder."""
    for draft in folder.glob(".draft-*"):
        draft.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """The new name reaches the disk, too."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
