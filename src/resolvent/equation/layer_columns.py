"""Substitution from layer to layer for large batches of systems with one or two unknowns a layer.

A product of matrices of two rows is a handful of multiplications. A batched product of PyTorch spends most of its time
on everything else, and a sum over two neighbouring numbers cannot be vectorised. Here samples are columns, so that each
operation runs over contiguous memory: matrices are (k, k, layers, batch), vectors (k, layers, batch).
"""

import torch
from torch import Tensor

MOST_UNKNOWNS = 2
"""Up to this many unknowns a layer the operations here are few."""

MIN_BATCH = 64
"""In smaller batches a batched product takes less time: it is one operation."""


class LayerColumns:
    """A = I - tau M F' of consecutive layers in columns, see `LayerMatrix`.

    Arguments:
        blocks: J, (batch, layers, k, k).
        tau: a number, a 0-d tensor, or one per sample, (batch, 1, 1, 1).
        theta: the diagonal of M.
    """

    def __init__(self, blocks: Tensor, tau: float | Tensor, theta: float | Tensor) -> None:
        # The first inverse, then propagators and inverses of the other layers, is all that a solve needs.
        J = blocks.permute(2, 3, 1, 0).contiguous()
        tau = tau.reshape(-1) if isinstance(tau, Tensor) and tau.dim() > 0 else tau
        self._inverses, regular = _inverse(_shifted(J, -(tau * theta)))
        self.regular = regular.all(0)
        self._propagators = self._inverses[:, :, 1:]
        if isinstance(theta, Tensor) or theta != 1:
            self._propagators = _product(self._propagators, _shifted(J[:, :, :-1], tau * (1 - theta)))

    def solve(self, rows: Tensor) -> Tensor:
        """A^{-1} r for rows (batch, layers, k)."""
        r = to_columns(rows)
        changes = torch.cat([r[:, :1], r[:, 1:] - r[:, :-1]], dim=1)
        first, *others = apply(self._inverses, changes).unbind(1)
        w = [first]
        for P, own in zip(self._propagators.unbind(2), others, strict=True):
            w.append(apply(P, w[-1], own))
        return torch.stack(w, dim=1).permute(2, 1, 0)

    def solve_transposed(self, rows: Tensor) -> Tensor:
        """A^{-T} g: v_n = g_n + P_{n+1}^T v_{n+1}; then u_n = A_n^{-T} v_n - A_{n+1}^{-T} v_{n+1}."""
        *others, last = to_columns(rows).unbind(1)
        v = [last]
        for P, own in zip(reversed(self._propagators.unbind(2)), reversed(others), strict=True):
            v.append(apply(P.transpose(0, 1), v[-1], own))
        scaled = apply(self._inverses.transpose(0, 1), torch.stack(v[::-1], dim=1))
        return torch.cat([scaled[:, :-1] - scaled[:, 1:], scaled[:, -1:]], dim=1).permute(2, 1, 0)


def to_columns(rows: Tensor) -> Tensor:
    """(batch, layers, k) as (k, layers, batch)."""
    return rows.permute(2, 1, 0).contiguous()


def apply(A: Tensor, v: Tensor, plus: Tensor | None = None) -> Tensor:
    """A v + plus, for A (k, k, ...) and v (k, ...)."""
    total = plus
    for column, entry in zip(A.unbind(1), v.unbind(0), strict=True):
        total = column * entry if total is None else torch.addcmul(total, column, entry)
    assert total is not None
    return total


def _product(A: Tensor, B: Tensor) -> Tensor:
    """A B, for matrices (k, k, ...)."""
    total: Tensor | None = None
    for column, row in zip(A.unbind(1), B.unbind(0), strict=True):
        left, right = column.unsqueeze(1), row.unsqueeze(0)
        total = left * right if total is None else torch.addcmul(total, left, right)
    assert total is not None
    return total


def _shifted(J: Tensor, factor: float | Tensor) -> Tensor:
    """I + factor J, for J (k, k, ...)."""
    scaled = factor * J
    for n in range(J.shape[0]):
        scaled[n, n] += 1
    return scaled


def _inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    """The inverses of matrices (k, k, ...), and (...) whether they exist."""
    if A.shape[0] == 1:
        return A.reciprocal(), A[0, 0] != 0
    (a, b), (c, d) = A.unbind(0)[0].unbind(0), A.unbind(0)[1].unbind(0)
    determinant = torch.addcmul(a * d, b, c, value=-1)
    adjugate = torch.stack([torch.stack([d, -b]), torch.stack([-c, a])])
    return adjugate.div_(determinant), determinant != 0
