"""The device to train on and the folder of the data. They belong to the machine, not to the settings of a run.

Both are environment variables, so that all processes of a sweep find them.
"""

import os
from pathlib import Path

import torch

DEVICE, DATA_DIR = "RESOLVENT_DEVICE", "RESOLVENT_DATA_DIR"
DEVICES = ("auto", "cpu", "cuda")


def device() -> torch.device:
    """The device to train on, by default the CPU."""
    name = os.environ.get(DEVICE, "cpu")
    if name not in DEVICES:
        raise ValueError(f"{DEVICE} must be one of {', '.join(DEVICES)}, got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device: take --device cpu or auto.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def data_dir() -> Path | None:
    """The folder of the images, or None."""
    place = os.environ.get(DATA_DIR)
    return Path(place) if place else None


def use(device_name: str | None = None, data: Path | None = None) -> None:
    """Sets the device and the folder of the data, for this process and those that it starts."""
    if device_name is not None:
        os.environ[DEVICE] = device_name
        device()
    if data is not None:
        os.environ[DATA_DIR] = str(data)
