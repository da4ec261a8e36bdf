"""The matrices A = I - tau F'(w) of a batch, and solves with them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from resolvent.equation.norms import flat
from resolvent.equation.torch_func import transforming

# Up to this many unknowns LU factors take fewer operations than the block triangular form.
_MOST_FOR_LU = 24


class Matrix(ABC):
    """A of every sample, (batch, n, n)."""

    @abstractmethod
    def solve(self, r: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
        """A^{-1} r, or A^{-T} r, for r (batch, *shape), and (batch,) whether A was regular."""

    @abstractmethod
    def dense(self) -> Tensor:
        """(batch, n, n)."""

    def norm(self) -> Tensor:
        """The Frobenius norm, (batch,)."""
        return torch.linalg.matrix_norm(self.dense())

    @abstractmethod
    def take(self, rows: Tensor) -> "Matrix":
        """The matrices of the samples `rows`."""

    @abstractmethod
    def where(self, chosen: Tensor, other: "Matrix") -> "Matrix":
        """The matrices of the `chosen` samples (batch,), and those of `other` for the rest."""


@dataclass(frozen=True)
class Dense(Matrix):
    """A with no structure, solved by LU. Transposed systems share one factorization."""

    entries: Tensor

    def solve(self, r: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
        if not transposed:  # Newton's method uses every matrix once, so its factors are not kept.
            found, info = torch.linalg.solve_ex(self.entries, flat(r))
            return found.reshape(r.shape), info == 0
        factors, pivots, usable = self.factors
        return solve_factorized(factors, pivots, r, transposed), usable

    def dense(self) -> Tensor:
        return self.entries

    def take(self, rows: Tensor) -> "Dense":
        return Dense(self.entries[rows])

    def where(self, chosen: Tensor, other: Matrix) -> "Dense":
        return Dense(torch.where(chosen[:, None, None], self.entries, other.dense()))

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """LU factors, pivots, and (batch,) whether all pivots are nonzero."""
        factors, pivots, info = torch.linalg.lu_factor_ex(self.entries)
        return factors, pivots, info == 0


@dataclass(frozen=True)
class BlockTriangular(Matrix):
    """A = I - tau M F' of several layers, where layer i depends only on the layers j <= i:

        A_ii = I - tau m_ii J_i,      A_ij = -tau m_ij J_j    (j < i).

    Multiplying by the inverses of the small diagonal blocks makes it unit lower triangular, so a triangular solve
    replaces an LU factorization of the whole matrix.

    Attributes:
        mix: M, (layers, layers), lower triangular.
        blocks: J, (batch, layers, k, k).
        tau: a number, a 0-d tensor, or one per sample, (batch, 1, 1, 1, 1).
    """

    mix: Tensor
    blocks: Tensor
    tau: float | Tensor

    def solve(self, r: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
        inverses, lower, usable = self._factors
        batch, layers, k, _ = self.blocks.shape
        column = r.reshape(batch, layers * k, 1)
        triangular = torch.linalg.solve_triangular
        if transposed:
            half = triangular(lower.mT, column, upper=True, unitriangular=True)
            found = inverses.mT @ half.reshape(batch, layers, k, 1)
        else:
            scaled = (inverses @ column.reshape(batch, layers, k, 1)).reshape(batch, layers * k, 1)
            found = triangular(lower, scaled, upper=False, unitriangular=True)
        return found.reshape(r.shape), usable

    def dense(self) -> Tensor:
        # The blocks as (batch, 1, k, layers, k), spread over the rows of A.
        weighted = self.tau * self.mix[:, None, :, None] * self.blocks.transpose(1, 2)[:, None]
        size = weighted.shape[1] * weighted.shape[2]
        return torch.eye(size, dtype=weighted.dtype, device=weighted.device) - weighted.reshape(-1, size, size)

    def take(self, rows: Tensor) -> "BlockTriangular":
        tau = self.tau[rows] if isinstance(self.tau, Tensor) and self.tau.dim() > 0 else self.tau
        return BlockTriangular(self.mix, self.blocks[rows], tau)

    def where(self, chosen: Tensor, other: Matrix) -> "BlockTriangular":
        assert isinstance(other, BlockTriangular)
        return replace(self, blocks=torch.where(chosen[:, None, None, None], self.blocks, other.blocks))

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The inverses of the diagonal blocks, the unit lower triangular matrix, and (batch,) whether A is regular."""
        batch, layers, k, _ = self.blocks.shape
        tau = self.tau
        narrow, flat_tau = (
            (tau.squeeze(-1), tau.reshape(-1, 1, 1)) if isinstance(tau, Tensor) and tau.dim() > 0 else (tau, tau)
        )
        diagonal = self.mix.diagonal().reshape(1, layers, 1, 1)
        identity = torch.eye(k, dtype=self.blocks.dtype, device=self.blocks.device)
        inverses, info = torch.linalg.inv_ex(identity - narrow * diagonal * self.blocks)
        # The products of all pairs, inverse i with block j, as one product of a column with a row of blocks.
        row = self.blocks.transpose(1, 2).reshape(batch, k, layers * k)
        products = torch.bmm(inverses.reshape(batch, layers * k, k), row)
        below = self.mix.tril(-1)[:, None, :, None].expand(-1, k, -1, k).reshape(layers * k, layers * k)
        return inverses, -flat_tau * below * products, (info == 0).all(1)


def coupled_matrix(mix: Tensor, blocks: Tensor, tau: float | Tensor, triangular: bool) -> Matrix:
    """I - tau M F' from the Jacobians of single rows, (batch * rows, k, k)."""
    rows, k = mix.shape[0], blocks.shape[-1]
    wide = tau.reshape(-1, 1, 1, 1, 1) if isinstance(tau, Tensor) and tau.dim() > 0 else tau
    matrix = BlockTriangular(mix, blocks.reshape(-1, rows, k, k), wide)
    return matrix if triangular and rows * k > _MOST_FOR_LU else Dense(matrix.dense())


def solve_factorized(factors: Tensor, pivots: Tensor, r: Tensor, transposed: bool = False) -> Tensor:
    """A^{-1} r, or A^{-T} r, for r (batch, *shape)."""
    column = flat(r)[:, :, None]
    if not transforming():
        return torch.linalg.lu_solve(factors, pivots, column, adjoint=transposed).reshape(r.shape)
    # torch's lu_solve is wrong in a vmap over the columns inside a vmap over the factors.
    permutation, lower, upper = torch.lu_unpack(factors, pivots)
    triangular = torch.linalg.solve_triangular
    if transposed:
        half = triangular(upper.mT, column, upper=False)
        return (permutation @ triangular(lower.mT, half, upper=True, unitriangular=True)).reshape(r.shape)
    half = triangular(lower, permutation.mT @ column, upper=False, unitriangular=True)
    return triangular(upper, half, upper=True).reshape(r.shape)
