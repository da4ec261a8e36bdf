"""States of a pass recovered from its last one, by inverse steps, and checked."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from resolvent.blocks.walk import Walk
from resolvent.core.problem import rms
from resolvent.errors import ConvergenceError, ResolventError

T = TypeVar("T")

_ADVICE = (
    "An inverse step enlarges errors by as much as the step contracts, so states can be reconstructed only where the "
    "field dissipates little (purely imaginary spectra, few layers, small h). Take memory='checkpoint' instead, "
    "tighten the tolerance of the solves, or, if the error is acceptable, raise that of the reconstruction: "
    "rs.Reversible(tolerance=...)."
)


class ReconstructionError(ResolventError):
    """The states of a pass could not be recovered from its end accurately enough to differentiate it."""


class _Again(Protocol):
    def again(self, tensors: Sequence[Tensor], action: Callable[[Walk], T]) -> T: ...


class Reconstruction:
    """Recovers the states of one pass, from the last to the first.

    Every recovered state is compared with what the forward pass noted of it: one number for each sample, its inner
    product with a fixed vector. An error of the state shows in it with about the error's own root mean square.

    Arguments:
        tolerance: for the error of a state, relative to its root mean square.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.marks: list[Tensor] = []

    def note(self, state: Tensor) -> None:
        """To be called with the state after each step."""
        self.marks.append(_mark(state))

    def start(self, replay: _Again, tensors: Sequence[Tensor], n: int, y: Tensor, x: Tensor) -> Tensor:
        """The state at the start of the n-th step, from the one at its end; x is the state at the start of all."""
        with torch.no_grad():
            try:
                state = replay.again(tensors, lambda walk: walk.back(n, y))
            except ConvergenceError as error:
                raise ReconstructionError(
                    f"the inverse of step {n} could not be solved, so the state before it is lost. {_ADVICE}"
                ) from error
            missed = rms(state - x) if n == 0 else (_mark(state) - self.marks[n - 1]).abs()
            scale = torch.maximum(rms(state), rms(y))
            self._judge(n, missed, scale)
        # The input itself is at hand and needs no reconstruction, only served to check it.
        return x.detach() if n == 0 else state

    def _judge(self, n: int, missed: Tensor, scale: Tensor) -> None:
        lost = ~(missed <= self.tolerance * scale)
        if not bool(lost.any()):
            return
        worst = torch.nan_to_num(missed / scale, nan=torch.inf).max().item()
        raise ReconstructionError(
            f"reconstructing the state before step {n} from the end of the pass missed it by {worst:.1e} of its size, "
            f"above the tolerance {self.tolerance:.1e}, for {int(lost.sum())} of {lost.numel()} samples. {_ADVICE}"
        )


def _mark(state: Tensor) -> Tensor:
    """(batch,), the inner product with a fixed vector of unit root mean square, as large as the rms of a state."""
    flat = state.detach().reshape(state.shape[0], -1)
    # Equidistributed phases: no pattern of a state or of an error is likely to be orthogonal to them.
    phases = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64) * 2.399963229728653
    vector = (2**0.5 * phases.cos()).to(flat.dtype)
    return flat @ vector / flat.shape[1] ** 0.5
