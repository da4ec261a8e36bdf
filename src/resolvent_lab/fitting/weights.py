"""Weights in files that cannot hold code, with a checksum: safetensors."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from resolvent_lab import atomic

_SUM = "sha256"


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Writes tensors by name. The file is complete or not there."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    atomic.write(path, save(tensors, {_SUM: _checksum(tensors)}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors by name. Raises a `ValueError` if the file is damaged; one without a checksum is accepted."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get(_SUM)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
    if expected is not None and expected != _checksum(tensors):
        raise ValueError(f"{path} is damaged: wrong checksum")
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
