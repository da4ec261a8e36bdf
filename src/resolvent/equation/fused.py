"""`Directions` on a GPU: the steps of a fixed point in two kernels each, in place of some twenty operations."""

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence
from resolvent.equation.directions import MEMORY, Directions, least_part
from resolvent.equation.problem import Problem
from resolvent.equation.torch_func import transforming

# A program of a kernel treats so many entries of one sample at a time.
_LEAST_BLOCK, _LARGEST_BLOCK = 128, 4096
_ENTRIES_PER_WARP = 512


def can_be_fused(b: Tensor) -> bool:
    """Whether the kernels exist for states like b: in single precision, on a GPU."""
    plain = type(b) is Tensor and b.is_cuda and b.dtype == torch.float32 and b.is_contiguous()
    return plain and b.numel() > 0 and not transforming() and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


class FusedDirections(Directions):
    """The steps by kernels that read every vector once.

    Sums are in double precision, so that squares of small gradients do not underflow. Every sample has sums of its own,
    in an order that does not depend on the batch.

    Arguments:
        problem: its preconditioner is a number.
        convergence: the tolerances.
        steps: how many steps will be made.
    """

    def __init__(self, problem: Problem, convergence: Convergence, steps: int) -> None:
        from resolvent.equation import kernels  # Compiled on first use.

        self._kernels = kernels
        b, scale = problem.b, problem.constant_precondition
        assert scale is not None
        self._b, self._scale, self._convergence = b, scale, convergence
        self._batch, self._size = b.shape[0], b[0].numel()
        block = 1 << (self._size - 1).bit_length()
        self._block = min(max(block, _LEAST_BLOCK), _LARGEST_BLOCK)
        self._chunks = -(-self._size // self._block)
        self._memory, self._count = min(MEMORY, steps - 1), 0
        self._more = steps > 1
        self._first = self._sums(kernels.NUMBERS)
        if self._more:
            self._f, self._g = torch.empty_like(b), torch.empty_like(b)
            self._df, self._dg = (b.new_empty(self._memory, *b.shape) for _ in range(2))
            self._products = self._sums(2 * self._memory + 2)
            self._inverse = b.new_empty(self._batch, self._memory, dtype=torch.float64)

    def next(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        w, y = w.contiguous(), _weighted(y, tau)
        factor = 1.0 if isinstance(tau, Tensor) else tau
        moved = torch.empty_like(w)
        self._count += 1
        if self._count == 1:
            f, g = (self._f, self._g) if self._more else (moved, moved)
            self._launch(
                "start", w, y, self._b, f, g, moved, self._first, factor, self._scale, self._chunks, KEEP=self._more
            )
            return moved
        slot, held = (self._count - 2) % self._memory, min(self._count - 2, self._memory)
        ring = (self._f, self._g, self._df, self._dg, self._products)
        self._launch("measure", w, y, self._b, *ring, factor, self._scale, self._chunks, self._memory, held, slot)
        self._launch(
            "move", *ring, self._inverse, moved, least_part(w.dtype), self._chunks, self._memory, held, slot,
            WIDTH=self._width,
        )  # fmt: skip
        return moved

    def end(self, w: Tensor, y: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        last = self._sums(self._kernels.NUMBERS)
        factor = 1.0 if isinstance(tau, Tensor) else tau
        self._launch("finish", w.contiguous(), _weighted(y, tau), self._b, last, factor, self._chunks)
        status = self._b.new_empty(self._batch, dtype=torch.int32)
        residual = self._b.new_empty(self._batch)
        at = self._convergence
        self._kernels.verdict[(self._batch,)](
            self._first, last, status, residual, at.ratio, at.rtol, float(at.atol), at.rounding, at.far_from,
            at.divergence, self._chunks, WIDTH=self._width,
        )  # fmt: skip
        return status, residual

    @property
    def _width(self) -> int:
        return 1 << (self._chunks - 1).bit_length()

    def _sums(self, numbers: int) -> Tensor:
        return self._b.new_empty(self._batch, numbers, self._chunks, dtype=torch.float64)

    def _launch(self, name: str, *arguments: Any, **constants: Any) -> None:
        warps = max(1, min(8, self._block // _ENTRIES_PER_WARP))
        kernel = getattr(self._kernels, name)[(self._batch, self._chunks)]
        kernel(*arguments, self._size, BLOCK=self._block, num_warps=warps, **constants)


def _weighted(y: Tensor, tau: float | Tensor) -> Tensor:
    """tau y if tau is a tensor, else y."""
    return (tau * y if isinstance(tau, Tensor) else y).contiguous()
