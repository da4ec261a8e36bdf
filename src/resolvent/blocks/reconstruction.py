"""`Reconstruction`: checks states recovered from the last one by inverse steps."""

import torch
from torch import Tensor

from resolvent.equation.norms import rms
from resolvent.errors import ReconstructionError

ADVICE = (
    "An inverse step amplifies errors by as much as the step contracts, so states can be reconstructed only if the "
    "field dissipates little (purely imaginary spectra, few layers, small h). Take memory='checkpoint' instead, "
    "tighten the tolerance of the solves, or, if the error is acceptable, raise that of the reconstruction: "
    "rs.blocks.Reversible(tolerance=...)."
)


class Reconstruction:
    """Checks the states of one pass that are recovered from its end.

    The forward pass stores one number per sample and state: its inner product with a fixed vector. An error of the
    recovered state changes this number by about the root mean square of the error.

    Arguments:
        tolerance: for the error of a state, relative to its root mean square.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.marks: list[Tensor] = []

    def note(self, state: Tensor) -> None:
        """Stores the number of a state. Call it after each step."""
        self.marks.append(_mark(state))

    def check(self, n: int, state: Tensor, end: Tensor, x: Tensor) -> None:
        """Raises if `state` is not the start of the n-th step; `end` is its end, x the start of the pass."""
        missed = rms(state - x) if n == 0 else (_mark(state) - self.marks[n - 1]).abs()
        scale = torch.maximum(rms(state), rms(end))
        lost = ~(missed <= self.tolerance * scale)
        if not bool(lost.any()):
            return
        worst = torch.nan_to_num(missed / scale, nan=torch.inf).max().item()
        raise ReconstructionError(
            f"reconstructing the state before step {n} from the end of the pass missed it by {worst:.1e} of its size, "
            f"above the tolerance {self.tolerance:.1e}, for {int(lost.sum())} of {lost.numel()} samples. {ADVICE}"
        )


def _mark(state: Tensor) -> Tensor:
    """(batch,), the inner product with a fixed vector of unit root mean square, as large as the rms of a state."""
    flat = state.detach().reshape(state.shape[0], -1)
    # Equidistributed phases: no pattern of a state or of an error is likely to be orthogonal to them.
    phases = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64) * 2.399963229728653
    vector = (2**0.5 * phases.cos()).to(flat.dtype)
    return flat @ vector / flat.shape[1] ** 0.5
