"""Commands of the command line: the record that describes one, checks of its input, and how it can end."""

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def _no_arguments(parser: "ArgumentParser") -> None:
    return


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands. The list in `cli.py` gets one entry for each.

    A module with commands must not import torch or matplotlib at its top: `--help` imports all of them. `arguments` is
    called only for the command that is given, and `run` imports what it needs. The options `--config` and
    `--print_config` are added to every command.

    Attributes:
        name: on the command line.
        help: one sentence.
        arguments: adds the arguments to the command's parser. Give each a type: it also checks configuration files.
        run: called with the arguments as keywords. It raises ValueError for wrong input and CommandError for other
            failures.
        commands: the commands of a group, which has no `run`.
        config_first: whether the configuration file may be given first, without `--config`.
        extra: the optional dependencies that it needs, as in pip install "resolvent[extra]".
    """

    name: str
    help: str
    arguments: Callable[["ArgumentParser"], None] = _no_arguments
    run: Callable[..., None] | None = None
    commands: "tuple[Command, ...]" = ()
    config_first: bool = False
    extra: str = "experiments"


class CommandError(RuntimeError):
    """A command could not be finished, though its input was right."""


class Interrupted(BaseException):
    """A signal asks the command to stop. It is no KeyboardInterrupt, because Lightning handles those itself."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise `Interrupted` in this block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def add_flag(parser: "ArgumentParser", name: str, help: str) -> None:
    """Adds `--name`, and `--no-name` for the case that a configuration file has set it."""
    from jsonargparse import ActionYesNo

    parser.add_argument(f"--{name}", action=ActionYesNo(no_prefix="no-"), help=help)


def number(given: str | float) -> float:
    """The type of options with several numbers. With `float`, jsonargparse would not name the option in its errors."""
    return float(given)


def add_out(parser: "ArgumentParser", default: str, help: str) -> None:
    """Adds the option `--out`, a folder for the results. It is checked before the command runs."""
    parser.add_argument("--out", type=Path, default=Path(default), metavar="DIR", help=help)


def check_writable(folder: Path) -> None:
    """Raises a ValueError if a folder cannot be created or written to. Creates nothing that remains."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ValueError(f"--out must be a folder, but {existing} is a file.")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to --out {folder}: {error.strerror} ({existing}).") from None
