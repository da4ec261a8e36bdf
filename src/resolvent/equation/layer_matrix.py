"""The matrix of several layers as one equation: solves and products without a matrix of all layers."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from resolvent.equation.layer_columns import MIN_BATCH, MOST_UNKNOWNS, LayerColumns, apply, to_columns
from resolvent.equation.layer_factors import LayerFactors
from resolvent.equation.matrix import Dense, Matrix, inverse, times
from resolvent.equation.mixing import LayerMixing, Mixing
from resolvent.equation.norms import put, take
from resolvent.equation.torch_func import transforming

# Up to this many unknowns of a layer its inverse comes from the determinant, in a few operations.
_MOST_TO_INVERT = 2
# Up to this many unknowns of all layers together, and in small batches on a CPU, the matrix of all layers takes half
# the time.
_MOST_TOGETHER = 20


@dataclass(frozen=True)
class LayerMatrix(Matrix):
    """A = I - tau M F' of consecutive layers, where layer i depends only on the layers j <= i:

        A_ii = I - tau theta J_i,      A_ij = -tau J_j    (j < i).

    Differences of consecutive rows of A w = r couple only two layers,

        (I - tau theta J_n) w_n = (I + tau (1 - theta) J_{n-1}) w_{n-1} + r_n - r_{n-1},

    so substitution from layer to layer solves it, without a matrix of all layers.

    Attributes:
        mix: M, with theta on the diagonal and ones below it.
        blocks: J, (batch, layers, k, k).
        tau: a number, a 0-d tensor, or one per sample, (batch, 1, 1, 1).
    """

    mix: LayerMixing
    blocks: Tensor
    tau: float | Tensor

    def product(self, v: Tensor, transposed: bool = False) -> Tensor:
        rows = v.reshape(self.blocks.shape[:3])
        by = self._times
        slopes = by(self.blocks.mT, self.mix(rows, True)) if transposed else self.mix(by(self.blocks, rows))
        tau = self.tau.squeeze(3) if isinstance(self.tau, Tensor) and self.tau.dim() > 0 else self.tau
        return (rows - tau * slopes).reshape(v.shape)

    def dense(self) -> Tensor:
        return self._together.dense()

    def norm(self) -> Tensor:
        """Without the matrix of all layers: J_n occurs in the rows of all later layers."""
        identity = torch.eye(self.blocks.shape[-1], dtype=self.blocks.dtype, device=self.blocks.device)
        slopes = self.tau * self.blocks
        later = torch.arange(self.blocks.shape[1] - 1, -1, -1, device=self.blocks.device)
        own = (identity - self.mix.theta * slopes).square().sum((2, 3))
        return (own + later * slopes.square().sum((2, 3))).sum(1).sqrt()

    def inverse_norm(self) -> Tensor:
        batch, layers, k, _ = self.blocks.shape
        tau, theta = (x.double() if isinstance(x, Tensor) else x for x in (self.tau, self.mix.theta))
        factors = LayerFactors(self.blocks.double(), tau, theta)
        identity = torch.eye(layers * k, dtype=torch.double, device=self.blocks.device).unflatten(0, (layers, k))
        columns = factors.solve(identity.expand(batch, -1, -1, -1))
        return columns.flatten(1).norm(dim=1).masked_fill(~factors.regular, torch.inf)

    def take(self, rows: Tensor) -> Self:
        tau = self.tau[rows] if isinstance(self.tau, Tensor) and self.tau.dim() > 0 else self.tau
        return replace(self, blocks=take(self.blocks, rows), tau=tau)

    def put(self, rows: Tensor, part: Matrix) -> Self:
        assert isinstance(part, LayerMatrix)
        return replace(self, blocks=put(self.blocks, rows, part.blocks))

    def where(self, chosen: Tensor, other: Matrix) -> Self:
        assert isinstance(other, LayerMatrix)
        return replace(self, blocks=torch.where(chosen[:, None, None, None], self.blocks, other.blocks))

    @property
    def _as_columns(self) -> bool:
        batch, _, k, _ = self.blocks.shape
        return batch >= MIN_BATCH and k <= MOST_UNKNOWNS and not transforming()

    def _times(self, A: Tensor, rows: Tensor) -> Tensor:
        if not self._as_columns:
            return times(A, rows)
        return apply(A.permute(2, 3, 1, 0), to_columns(rows)).permute(2, 1, 0)

    @cached_property
    def _columns(self) -> LayerColumns:
        return LayerColumns(self.blocks, self.tau, self.mix.theta)

    @cached_property
    def inverses(self) -> tuple[Tensor, Tensor]:
        """The inverses of the diagonal blocks, (batch, layers, k, k), and (batch,) whether all are regular."""
        identity = torch.eye(self.blocks.shape[-1], dtype=self.blocks.dtype, device=self.blocks.device)
        found, regular = inverse(identity - (self.tau * self.mix.theta) * self.blocks)
        return found, regular.all(1)

    @cached_property
    def _together(self) -> Dense:
        return Dense(assembled(self.mix.matrix(self.blocks.shape[1], self.blocks), self.blocks, self.tau))

    @cached_property
    def _factors(self) -> LayerFactors:
        return LayerFactors(self.blocks, self.tau, self.mix.theta)

    def solve(self, r: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
        rows = r.reshape(self.blocks.shape[:3])
        if self._as_columns:
            by = self._columns
            return (by.solve_transposed(rows) if transposed else by.solve(rows)).reshape(r.shape), by.regular
        if rows.is_cpu and rows.shape[2] <= _MOST_TO_INVERT and rows.shape[1:].numel() <= _MOST_TOGETHER:
            return self._together.solve(r, transposed)
        if self.blocks.shape[-1] > _MOST_TO_INVERT and not transforming():
            found = self._factors.solve(rows.unsqueeze(3), transposed)
            return found.reshape(r.shape), self._factors.regular
        inverses, usable = self.inverses
        if transposed:
            found = self._back(inverses, rows)
        else:
            changes = torch.cat([rows[:, :1], rows[:, 1:] - rows[:, :-1]], dim=1)
            found = self._forth(times(inverses, changes))
        return found.reshape(r.shape), usable

    def _forth(self, right: Tensor) -> Tensor:
        """w_n = P_n w_{n-1} + right_n."""
        first, *others = right.unsqueeze(3).unbind(1)
        w = [first]
        for P, own in zip(self._propagators.unbind(1), others, strict=True):
            w.append(torch.baddbmm(own, P, w[-1]))
        return torch.stack(w, dim=1)

    def _back(self, inverses: Tensor, rows: Tensor) -> Tensor:
        """v_n = g_n + P_{n+1}^T v_{n+1} for the rows g; then u_n = A_n^{-T} v_n - A_{n+1}^{-T} v_{n+1}."""
        *others, last = rows.unsqueeze(3).unbind(1)
        v = [last]
        for P, own in zip(reversed(self._propagators.mT.unbind(1)), reversed(others), strict=True):
            v.append(torch.baddbmm(own, P, v[-1]))
        scaled = times(inverses.mT, torch.stack(v[::-1], dim=1).squeeze(3))
        return torch.cat([scaled[:, :-1] - scaled[:, 1:], scaled[:, -1:]], dim=1)

    @cached_property
    def _propagators(self) -> Tensor:
        """P_n = (I - tau theta J_n)^{-1} (I + tau (1 - theta) J_{n-1}), (batch, layers - 1, k, k)."""
        later, theta = self.inverses[0][:, 1:], self.mix.theta
        if not isinstance(theta, Tensor) and theta == 1:
            return later
        identity = torch.eye(later.shape[-1], dtype=later.dtype, device=later.device)
        earlier = identity + (self.tau * (1 - theta)) * self.blocks[:, :-1]
        # For a few unknowns a product of many small matrices takes three times as long.
        return (later.unsqueeze(-1) * earlier.unsqueeze(-3)).sum(-2) if later.shape[-1] <= 2 else later @ earlier


def coupled_matrix(mix: Mixing, blocks: Tensor, tau: float | Tensor) -> Matrix:
    """I - tau M F' from the Jacobians of single rows, (batch, rows, k, k)."""
    wide = tau.reshape(-1, 1, 1, 1) if isinstance(tau, Tensor) and tau.dim() > 0 else tau
    if isinstance(mix, LayerMixing):
        return LayerMatrix(mix, blocks, wide)
    return Dense(assembled(mix.matrix(blocks.shape[1], blocks), blocks, wide))


def assembled(entries: Tensor, blocks: Tensor, tau: float | Tensor) -> Tensor:
    """I - tau M F', (batch, rows k, rows k), from the `entries` of M, (rows, rows), and blocks (batch, rows, k, k); tau
    as in `LayerMatrix`."""
    wide = tau.unsqueeze(4) if isinstance(tau, Tensor) and tau.dim() > 0 else tau
    # The blocks as (batch, 1, k, rows, k), spread over the rows of A.
    weighted = (-wide * entries[:, None, :, None]) * blocks.transpose(1, 2)[:, None]
    size = weighted.shape[1] * weighted.shape[2]
    matrix = weighted.reshape(-1, size, size)
    return torch.eye(size, dtype=matrix.dtype, device=matrix.device) + matrix
