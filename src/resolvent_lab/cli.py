"""The command line: one parser for all commands."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from resolvent_lab import stability
from resolvent_lab.bench.command import BENCH
from resolvent_lab.command import Command, CommandError, Interrupted, check_writable, interruptible
from resolvent_lab.experiments.command import REPRODUCE

COMMANDS: tuple[Command, ...] = (BENCH, REPRODUCE, stability.STABILITY, stability.FIGURES)
"""All commands. A new one gets an entry here."""

WRONG_INPUT, FAILED, SIGNALLED = 2, 1, 128
"""Exit codes; that of a signal is added to the last one."""


def main(args: Sequence[str] | None = None) -> None:
    """Runs a command. Errors are reported in one line, without a traceback."""
    options = vars(_parser().parse_args(args))
    run = options.pop("run")
    try:
        with interruptible():
            if "out" in options:
                check_writable(options["out"])
            run(**options)
    except ValueError as error:
        _end(str(error), WRONG_INPUT)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] in ("resolvent", "resolvent_lab"):
            raise  # a defect of ours
        _end(f'{error}: pip install "resolvent[experiments]"', FAILED)
    except (CommandError, OSError) as error:
        _end(str(error), FAILED)
    except Interrupted as stop:
        _end("; ".join(["interrupted", *getattr(stop, "__notes__", [])]), SIGNALLED + stop.signum)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("resolvent", description="Implicit residual networks: experiments, benchmarks, figures.")
    parser.add_argument("--version", action="version", version=f"resolvent {version('resolvent')}")
    _add(parser, COMMANDS)
    return parser


def _add(parser: ArgumentParser, commands: Sequence[Command]) -> None:
    subparsers: Any = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in commands:
        own = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.arguments(own)
        if command.commands:
            _add(own, command.commands)
        else:
            own.set_defaults(run=command.run)


def _end(message: str, code: int) -> NoReturn:
    print(f"resolvent: {message}", file=sys.stderr)
    sys.exit(code)
