"""The configuration of a run: its keys with their types, and the objects that it describes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

_FIXED = ("seed", "data", "model", "optimizer", "lr_scheduler", "lr_interval", "penalties", "monitor")
"""The keys that must not change when a run goes on."""


def add_arguments(parser: "ArgumentParser") -> None:
    """Adds all keys. The names are those of Lightning's own command line, as far as it has them."""
    from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable

    from resolvent_lab.lightning import Trainer
    from resolvent_lab.training import architectures, pictures, series, tables, toys  # noqa: F401  their classes get names
    from resolvent_lab.training.data import Data
    from resolvent_lab.training.network import Architecture
    from resolvent_lab.training.penalties import Penalties

    parser.add_argument(
        "--data",
        type=Data,
        required=True,
        help="Table, Series, Pictures, one of the paper's (Sine, StiffSystem, PredatorPrey), or your own class",
    )
    parser.add_argument(
        "--model",
        type=Architecture,
        required=True,
        help="ThetaMLP, ImplicitResNet, NeuralODE, EquilibriumModel, or your own class",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("run"), metavar="DIR", help="folder of the run; run by default"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and probes; 0 by default")
    adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3}}
    parser.add_argument("--optimizer", type=OptimizerCallable, default=adam, help="any of torch; Adam by default")
    parser.add_argument("--lr_scheduler", type=LRSchedulerCallable | None, default=None, help="any of torch; none")
    parser.add_argument("--lr_interval", type=Literal["epoch", "step"], default="epoch", help="when it steps")
    parser.add_class_arguments(Penalties, "penalties")
    parser.add_argument("--monitor", type=str, default="val_loss", help="metric of the best epoch, or val_accuracy")
    parser.add_argument("--patience", type=int | None, default=None, help="epochs without a better one before it stops")
    parser.add_argument("--checkpoint_every", type=int | None, default=None, help="steps between checkpoints")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, skip={"default_root_dir"})
    parser.set_defaults(
        {
            "trainer.max_epochs": 20,
            "trainer.num_sanity_val_steps": 0,
            "trainer.accelerator": "cpu",
            "trainer.devices": 1,
            "trainer.enable_model_summary": False,
        }
    )


def parser() -> "ArgumentParser":
    """A parser of these keys alone."""
    from jsonargparse import ArgumentParser

    made = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_arguments(made)
    return made


def parse(*arguments: str) -> "Namespace":
    """The settings that `resolvent train` would have with these arguments: parse("CONFIG.yaml", "--seed", "1").

    Raises a ValueError where the command would end with the exit code 2.
    """
    from argparse import ArgumentError

    made = parser()
    made.add_argument("--config", action="config")
    first = ["--config"] if arguments and not arguments[0].startswith("-") else []
    try:
        settings = made.parse_args([*first, *arguments])
    except ArgumentError as error:
        raise ValueError(str(error)) from None
    del settings["config"]
    return settings


def check(settings: "Namespace") -> None:
    """Raises for values that no type refuses."""
    if settings.patience is not None and settings.patience < 1:
        raise ValueError(f"patience is a number of epochs and must be 1 or more, got {settings.patience}.")
    if settings.checkpoint_every is not None and settings.checkpoint_every < 1:
        raise ValueError(
            f"checkpoint_every is a number of steps and must be 1 or more, got {settings.checkpoint_every}."
        )
    if settings.monitor not in ("val_loss", "val_accuracy"):
        raise ValueError(f"monitor must be val_loss or val_accuracy, got {settings.monitor!r}.")
    if settings.seed < 0:
        raise ValueError(f"seed must be 0 or more, got {settings.seed}.")


def text(settings: "Namespace") -> str:
    """The settings as YAML."""
    dumped: str = parser().dump(settings)
    return dumped


def read(path: Path) -> "Namespace":
    """The settings in a file that `text` made."""
    from argparse import ArgumentError

    try:
        return parser().parse_path(path)
    except (ArgumentError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def instantiate(settings: "Namespace") -> Any:
    """The objects that the settings describe: data, model, optimizer and so on."""
    return parser().instantiate(settings)


def differences(before: "Namespace", now: "Namespace") -> list[str]:
    """The keys that must not change and did."""
    old, new = (json.loads(parser().dump(settings, format="json")) for settings in (before, now))
    return [key for key in _FIXED if old.get(key) != new.get(key)]
