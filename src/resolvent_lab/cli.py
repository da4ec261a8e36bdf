"""The command line: one parser for all commands."""

import sys
from argparse import ArgumentError, HelpFormatter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

from resolvent_lab import stability
from resolvent_lab.bench.command import BENCH
from resolvent_lab.command import Command, CommandError, Interrupted, check_writable, interruptible
from resolvent_lab.experiments.command import REPRODUCE
from resolvent_lab.messages import plain
from resolvent_lab.training.command import DIAGNOSE, EVALUATE, PREDICT, TRAIN

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

COMMANDS: tuple[Command, ...] = (
    TRAIN,
    EVALUATE,
    PREDICT,
    DIAGNOSE,
    REPRODUCE,
    BENCH,
    stability.STABILITY,
    stability.FIGURES,
)
"""All commands. A new one gets an entry here."""

WRONG_INPUT, FAILED, SIGNALLED = 2, 1, 128
"""Exit codes; that of a signal is added to the last one."""


def main(args: Sequence[str] | None = None) -> None:
    """Runs a command. Errors are reported in one line, without a traceback."""
    given = _with_config(list(sys.argv[1:] if args is None else args))
    try:
        run, options = _chosen(COMMANDS, _parser(given).parse_args(given))
        with interruptible():
            if options.get("out") is not None:
                check_writable(options["out"])
            run(**options)
    except (ArgumentError, ValueError) as error:
        _end(str(error), WRONG_INPUT)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] in ("resolvent", "resolvent_lab"):
            raise  # a defect of ours
        _end(f'{error}: pip install "resolvent[{_extra(given)}]"', FAILED)
    except (CommandError, OSError) as error:
        _end(str(error), FAILED)
    except Interrupted as stop:
        _end("; ".join(["interrupted", *getattr(stop, "__notes__", [])]), SIGNALLED + stop.signum)


def _with_config(given: list[str]) -> list[str]:
    """`train CONFIG.yaml` is short for `train --config CONFIG.yaml`."""
    first = {each.name for each in COMMANDS if each.config_first}
    if len(given) > 1 and given[0] in first and not given[1].startswith("-"):
        return [given[0], "--config", *given[1:]]
    return given


def _extra(given: Sequence[str]) -> str:
    return next((each.extra for each in COMMANDS if each.name in given[:1]), "experiments")


def _parser(given: Sequence[str]) -> "ArgumentParser":
    parser = _empty_parser("Implicit residual networks: training, experiments, benchmarks, figures.")
    parser.prog = "resolvent"
    parser.add_argument("--version", action="version", version=f"resolvent {version('resolvent')}")
    _add(parser, COMMANDS, given)
    return parser


def _empty_parser(description: str) -> "ArgumentParser":
    from jsonargparse import ArgumentParser  # not at the top, so that `main` can say what to install

    # The plain formatter: our help names the defaults in words.
    return ArgumentParser(
        description=description, formatter_class=HelpFormatter, exit_on_error=False, allow_abbrev=False
    )


def _add(parser: "ArgumentParser", commands: Sequence[Command], given: Sequence[str]) -> None:
    """Adds commands. Only those that are given get their arguments, because these may need slow imports."""
    subcommands = parser.add_subcommands(dest="command", title="commands", metavar="COMMAND", description=None)
    for command in commands:
        own = _empty_parser(command.help)
        subcommands.add_subcommand(command.name, own, help=command.help)
        own.prog = f"{parser.prog} {command.name}"
        if command.commands:
            _add(own, command.commands, given)
        elif command.name in given:
            command.arguments(own)
            help = "YAML file of options; those behind it on the command line override it"
            own.add_argument("--config", action="config", metavar="FILE", help=help)


def _chosen(commands: Sequence[Command], parsed: "Namespace") -> tuple[Callable[..., None], dict[str, Any]]:
    """What to run, and its options."""
    command = next(each for each in commands if each.name == parsed.command)
    options = parsed[command.name]
    if command.run is None:
        return _chosen(command.commands, options)
    return command.run, {key: value for key, value in vars(options).items() if key != "config"}


def _end(message: str, code: int) -> NoReturn:
    print(f"resolvent: {plain(message)}", file=sys.stderr)
    sys.exit(code)
