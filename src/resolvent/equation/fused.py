"""`Directions` on a GPU: the steps of a fixed point in two kernels each, in place of some twenty operations.

Of every new pair of changes (df, dg) the part along the earlier df is subtracted, so that the df are orthogonal and

    w <- g - sum_j gamma_j dg_j,   gamma_j = <f, df_j> / <df_j, df_j>,

is the step of `Secants` with no system to solve.

Reference: Eisenstat, Elman & Schultz, Variational iterative methods for nonsymmetric systems of linear equations,
SIAM J. Numer. Anal. 20, 1983.
"""

import importlib.util
import logging
import struct
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence
from resolvent.equation.directions import MEMORY, Directions
from resolvent.equation.norms import memory_format
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Status
from resolvent.equation.torch_func import transforming

# A program of a kernel treats so many entries of one sample at a time.
_LEAST_BLOCK, _LARGEST_BLOCK = 128, 4096
_ENTRIES_PER_WARP = 512
# Of a sample. With more, the parts of a sum would be too many for one program.
_MOST_ENTRIES = 1 << 26


def _least_part(dtype: torch.dtype) -> float:
    """A change whose square falls to less than this by the subtraction is not used: what is left is rounding."""
    return float(torch.finfo(dtype).eps ** 0.5)


def can_be_fused(problem: Problem) -> bool:
    """Whether the kernels exist for the problem: in single precision, on a GPU, with a number as preconditioner."""
    b = problem.b
    if type(b) is not Tensor or not b.is_cuda or b.dtype != torch.float32 or transforming():
        return False
    fits = b.numel() > 0 and problem.size <= _MOST_ENTRIES
    # A kernel is launched on the current device, wherever its arguments are.
    here = b.device.index == torch.cuda.current_device()
    return fits and here and problem.constant_precondition is not None and kernels_run_on(b.device)


@cache
def kernels_run_on(device: torch.device) -> bool:
    """Whether Triton is there and can compile for the device, for which it needs a C compiler. A failure is logged."""
    if importlib.util.find_spec("triton") is None or torch.version.hip:
        return False
    try:
        from resolvent.equation import kernels

        x = torch.zeros(1, _LEAST_BLOCK, dtype=torch.float32, device=device)
        sums = torch.empty(1, kernels.NUMBERS, 1, dtype=torch.float64, device=device)
        kernels.finish[(1, 1)](x, x, x, sums, 1.0, 1, _LEAST_BLOCK, BLOCK=_LEAST_BLOCK)
    except Exception as failure:  # Whatever it is, there is another way.
        cause = (str(failure).splitlines() or [type(failure).__name__])[0]
        logging.getLogger("resolvent").warning("Triton cannot be used, so solves are slower on %s: %s", device, cause)
        return False
    return True


class Report(NamedTuple):
    """What is read from the device after a step.

    Attributes:
        going: how many samples take another step.
        converged: how many need none, nor an error estimate.
        before, now: the largest residual of a sample that takes another step, in units of its tolerance.
    """

    going: int
    converged: int
    before: float
    now: float


class Verdict(NamedTuple):
    """What `FusedDirections.judge` needs.

    Attributes:
        steps: int32, (batch,); it counts the steps of the samples that took one.
        report: int32, (4,), zeros; becomes a `Report`.
        residual: float32, (batch,); becomes the residuals.
        pace: the fraction of its first residual below which that of a sample must be.
        follows: whether the tolerance follows the size of the iterate where b is zero.
    """

    steps: Tensor
    report: Tensor
    residual: Tensor
    pace: float
    follows: bool


class FusedDirections(Directions):
    """The steps by kernels that read every vector once, in the order of memory. Samples that fit into one block take
    one kernel a step, larger ones two, and two more to be judged.

    Sums are in double precision, so that squares of small gradients do not underflow. Every sample has sums of its own,
    in an order that does not depend on the batch.

    Arguments:
        problem: one that `can_be_fused`.
        convergence: the tolerances.
        steps: how many steps may be made.
        done: int32, (batch,), 1 for samples that do not move; None moves all of them.
    """

    def __init__(self, problem: Problem, convergence: Convergence, steps: int, done: Tensor | None = None) -> None:
        from resolvent.equation import kernels  # Compiled on first use.

        self._kernels, self._convergence, self._done = kernels, convergence, done
        b, scale = problem.b, problem.constant_precondition
        assert scale is not None
        self._layout = memory_format(b) or torch.contiguous_format
        self._b, self._scale = self._laid_out(b), scale
        self._batch, self._size = b.shape[0], b[0].numel()
        self._block = min(max(_power_of_two(self._size), _LEAST_BLOCK), _LARGEST_BLOCK)
        self._chunks = -(-self._size // self._block)
        self._width = _power_of_two(self._chunks)
        self._memory, self._count = min(MEMORY, steps - 1), 0
        self._first = self._last = self._before = self._sums(kernels.NUMBERS)
        # The last iterate and its image.
        self._w = self._g = self._b

    def next(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        w, y, factor = self._laid_out(w), *self._weighted(y, tau)
        moved = torch.empty_like(w)
        self._count += 1
        masked = self._done is not None
        mask = self._done if masked else moved
        if self._count == 1:
            self._launch(
                "start", w, y, self._b, mask, moved, self._first, factor, self._scale, self._chunks, self._size,
                MASKED=masked,
            )  # fmt: skip
            self._w, self._g = w, moved
            return moved
        if self._count == 2:
            self._df, self._dg = (self._b.new_empty(self._memory, *self._b.shape) for _ in range(2))
            self._inverse = self._b.new_empty(self._batch, self._memory, dtype=torch.float64)
        if self._chunks == 1:
            self._leap(w, y, factor, None, moved)
            return moved
        if self._count == 2:
            self._products = self._sums(2 * self._memory + 2)
        counts = (self._chunks, *self._counts)
        g, ring = torch.empty_like(w), (self._df, self._dg, self._products)
        self._launch("measure", w, y, self._b, self._w, self._g, g, *ring, factor, self._scale, *counts, self._size)
        self._launch(
            "move", w, g, *ring, self._inverse, mask, moved, _least_part(w.dtype), *counts, self._size,
            WIDTH=self._width, MASKED=masked,
        )  # fmt: skip
        self._w, self._g = w, g
        return moved

    @property
    def _counts(self) -> tuple[int, int, int]:
        """The rows of the ring, how many of them are used, and which one is the newest."""
        return self._memory, min(self._count - 2, self._memory), (self._count - 2) % self._memory

    def measure(self, w: Tensor, y: Tensor, tau: float | Tensor) -> None:
        """Measures the residual at an iterate, for `verdict`."""
        self._before, self._last = self._last, self._sums(self._kernels.NUMBERS)
        y, factor = self._weighted(y, tau)
        self._launch("finish", self._laid_out(w), y, self._b, self._last, factor, self._chunks, self._size)

    def judge(self, w: Tensor, y: Tensor, tau: float | Tensor, verdict: "Verdict") -> Tensor | None:
        """Measures the residual at an iterate, and stops samples that are within the tolerance, or whose residual is
        not below `pace` times the first one.

        Returns:
            The next iterate, if the same kernel makes it; otherwise it is left to `next`.
        """
        at = self._convergence
        if self._chunks > 1:
            self.measure(w, y, tau)
            self._kernels.judge[(self._batch,)](
                self._first, self._before, self._last, self._done, *verdict[:3], at.ratio, at.rtol, at.atol_number,
                at.far_from, verdict.pace, self._chunks, WIDTH=self._width, FOLLOWS=verdict.follows,
            )  # fmt: skip
            return None
        self._before, self._last = self._last, self._sums(self._kernels.NUMBERS)
        # Most solves end with the first step, and need no ring.
        moved = torch.empty_like(w) if self._count > 1 else None
        self._count += moved is not None
        self._leap(self._laid_out(w), *self._weighted(y, tau), verdict, moved)
        return moved

    def _leap(self, w: Tensor, y: Tensor, factor: float, verdict: "Verdict | None", moved: Tensor | None) -> None:
        """Judges if a `verdict` is wanted, and makes the next iterate if it is to be `moved`; for one chunk."""
        at, judges, moves, none = self._convergence, verdict is not None, moved is not None, self._first
        wanted = Verdict(none, none, none, 0.0, False) if verdict is None else verdict
        g = torch.empty_like(w) if moves else none
        ring = (self._df, self._dg, self._inverse) if moves else (none, none, none)
        masked = self._done is not None
        self._launch(
            "leap", w, y, self._b, factor, self._scale, self._size, self._first, self._before, self._last,
            self._done if masked else none, *wanted[:3], at.ratio, at.rtol, at.atol_number, at.far_from, wanted.pace,
            self._w, self._g, g, *ring, moved if moves else none, _least_part(w.dtype),
            *(self._counts if moves else (1, 0, 0)), JUDGES=judges, MOVES=moves, MASKED=masked, FOLLOWS=wanted.follows,
        )  # fmt: skip
        if moves:
            self._w, self._g = w, g

    def verdict(self, far: Status) -> tuple[Tensor, Tensor]:
        """The status and the residual of every sample, (batch,); `far` is the status of those that need an error
        estimate."""
        status = self._b.new_empty(self._batch, dtype=torch.int32)
        residual = self._b.new_empty(self._batch)
        at = self._convergence
        self._kernels.verdict[(self._batch,)](
            self._first, self._last, status, residual, at.ratio, at.rtol, at.atol_number, at.rounding, at.far_from,
            at.divergence, self._chunks, far.value, WIDTH=self._width,
        )  # fmt: skip
        return status, residual

    def end(self, w: Tensor, y: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        self.measure(w, y, tau)
        return self.verdict(Status.DIVERGED)

    @property
    def natural(self) -> Tensor:
        """(batch,), see `Progress.natural`."""
        lengths = self._first.sum(2).sqrt().amax(1).float()
        return lengths.nan_to_num(nan=torch.nan, posinf=torch.nan)

    @property
    def first_residual(self) -> Tensor:
        """(batch,), that of the first guess."""
        return (self._first[:, 0].sum(1).sqrt() / self._convergence.ratio).float()

    def _laid_out(self, x: Tensor) -> Tensor:
        """x in the layout that all tensors share."""
        return x.contiguous(memory_format=self._layout)

    def _weighted(self, y: Tensor, tau: float | Tensor) -> tuple[Tensor, float]:
        """A tensor and a number whose product is tau y."""
        return (self._laid_out(tau * y), 1.0) if isinstance(tau, Tensor) else (self._laid_out(y), tau)

    def _sums(self, numbers: int) -> Tensor:
        return self._b.new_empty(self._batch, numbers, self._chunks, dtype=torch.float64)

    def _launch(self, name: str, *arguments: Any, **constants: Any) -> None:
        warps = max(1, min(8, self._block // _ENTRIES_PER_WARP))
        kernel = getattr(self._kernels, name)[(self._batch, self._chunks)]
        kernel(*arguments, BLOCK=self._block, num_warps=warps, **constants)


def read(report: Tensor) -> Report:
    """Waits for the device."""
    going, converged, *bits = report.tolist()
    return Report(going, converged, *struct.unpack("ff", struct.pack("ii", *bits)))


def _power_of_two(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (size - 1).bit_length()
