"""`Spectrum`: eigenvalues in checkpoint files."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_KEY = "spectrum"


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a field's Jacobians, and the step of the network.

    With it the spectrum of a trained network can be drawn over a stability region without the code of the network.

    Attributes:
        eigenvalues: complex, of any shape, as from `jacobian_spectrum`.
        h: the step.
    """

    eigenvalues: Tensor
    h: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.eigenvalues, Tensor) or self.eigenvalues.numel() == 0:
            raise ValueError(f"eigenvalues must be a tensor that is not empty, got {self.eigenvalues!r}.")
        if not self.h > 0:
            raise ValueError(f"the step h must be positive, got {self.h!r}.")

    def to_checkpoint(self) -> dict[str, Any]:
        """An entry for a checkpoint: `torch.save({"state_dict": ..., **spectrum.to_checkpoint()}, path)`."""
        return {_KEY: {"eigenvalues": self.eigenvalues.detach().cpu(), "h": self.h}}

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint that contains only this spectrum."""
        torch.save(self.to_checkpoint(), path)


def load_spectrum(path: str | Path) -> Spectrum:
    """Reads the spectrum from a checkpoint.

    Only tensors and plain values are unpickled, so that an untrusted file cannot run code.

    Arguments:
        path: a file written by `torch.save` with the entry of `Spectrum.to_checkpoint`; other entries are ignored.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {str(path)!r}.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{str(path)!r} is not a checkpoint of tensors and plain values; anything else is not unpickled, because "
            f"it could run code. {_HOW_TO}"
        ) from error
    entry = checkpoint.get(_KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or "eigenvalues" not in entry:
        keys = sorted(map(str, checkpoint))[:8] if isinstance(checkpoint, dict) else type(checkpoint).__name__
        raise ValueError(f"{str(path)!r} holds no spectrum, but {keys}. {_HOW_TO}")
    return Spectrum(entry["eigenvalues"], float(entry.get("h", 1.0)))


_HOW_TO = (
    "Write one from the network: eigenvalues = rs.analysis.jacobian_spectrum(block.field, "
    "trajectory.times, trajectory.states); rs.analysis.Spectrum(eigenvalues, h).save(path), or add "
    "Spectrum(...).to_checkpoint() to the checkpoint."
)
