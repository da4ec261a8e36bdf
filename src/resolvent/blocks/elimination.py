"""Linear systems by elementary operations, for exported programs: ONNX has no linear algebra beyond products."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def eliminate(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """A^{-1} B by Gauss-Jordan elimination with partial pivoting, and (batch,) whether all pivots are nonzero.

    The loop over the columns is unrolled in a graph, so A should be small.

    Arguments:
        A: (batch, n, n).
        B: (batch, n, k).
    """
    n = A.shape[-1]
    both = torch.cat([A, B], dim=-1)
    free = torch.ones_like(A[..., :1], dtype=torch.bool)
    numbers = torch.arange(n, device=A.device)[:, None]
    order, pivots = [], []
    for k in range(n):
        column = both[..., k : k + 1]
        largest = column.abs().where(free, -1.0).argmax(-2, keepdim=True)
        others = numbers != largest
        row = both.masked_fill(others, 0.0).sum(-2, keepdim=True)
        pivot = row[..., k : k + 1]
        # The chosen row becomes row / pivot, and the column is cleared in all others.
        both = torch.where(others, both - column * (row / pivot), row / pivot)
        free = free & others
        order.append(largest)
        pivots.append(pivot)
    usable = (torch.cat(pivots, dim=-2) != 0).all(-2)[..., 0]
    rows = torch.cat(order, dim=-2).expand(*B.shape)
    return both[..., n:].gather(-2, rows), usable


def _solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    columns = B[..., None] if B.dim() == A.dim() - 1 else B
    found, usable = eliminate(A, columns)
    failed = (~usable).to(torch.int32)
    # The factors and pivots of the operation: nobody uses them.
    return found.reshape(B.shape), A, torch.zeros_like(A[..., 0], dtype=torch.int32), failed


def _inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand(A.shape)
    inverse, usable = eliminate(A, identity)
    return inverse, (~usable).to(torch.int32)


def _solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    A = torch.triu(A, 1 if unitriangular else 0) if upper else torch.tril(A, -1 if unitriangular else 0)
    if unitriangular:
        A = A + torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return eliminate(A, B)[0]


ELEMENTARY: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._linalg_solve_ex.default: _solve_ex,
    torch.ops.aten.linalg_inv_ex.default: _inv_ex,
    torch.ops.aten.linalg_solve_triangular.default: _solve_triangular,
}
"""Replacements of torch's operations, by operation."""
