"""What a run takes from the machine that it is on, and not from its settings: the device, and where data lies.

Both are environment variables, so that every process of a sweep finds them.
"""

import os
from pathlib import Path

import torch

DEVICE, DATA_DIR = "RESOLVENT_DEVICE", "RESOLVENT_DATA_DIR"
DEVICES = ("auto", "cpu", "cuda")


def device() -> torch.device:
    """The device to train on: the CPU unless another was asked for."""
    name = os.environ.get(DEVICE, "cpu")
    if name not in DEVICES:
        raise ValueError(f"{DEVICE} must be one of {', '.join(DEVICES)}, got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device that torch can use here: take --device cpu, or auto.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def data_dir() -> Path | None:
    """Where the images are, or None."""
    place = os.environ.get(DATA_DIR)
    return Path(place) if place else None


def use(device_name: str | None = None, data: Path | None = None) -> None:
    """Choose for this process and for those that it starts."""
    if device_name is not None:
        os.environ[DEVICE] = device_name
        device()
    if data is not None:
        os.environ[DATA_DIR] = str(data)
