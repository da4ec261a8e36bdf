"""The matrices A = I - tau F'(w) of a batch, and solves with them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resolvent.equation.norms import flat, products
from resolvent.equation.torch_func import transforming


class Matrix(ABC):
    """A of every sample, (batch, n, n)."""

    @abstractmethod
    def solve(self, r: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
        """A^{-1} r, or A^{-T} r, for r (batch, *shape), and (batch,) whether A was regular."""

    @abstractmethod
    def product(self, v: Tensor, transposed: bool = False) -> Tensor:
        """A v, or A^T v, for v (batch, *shape)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """(batch, n, n)."""

    def norm(self) -> Tensor:
        """The Frobenius norm, (batch,)."""
        return torch.linalg.matrix_norm(self.dense())

    @abstractmethod
    def inverse_norm(self) -> Tensor:
        """The Frobenius norm of A^{-1}, (batch,), in double precision; not finite where A is singular."""

    @abstractmethod
    def take(self, rows: Tensor) -> "Matrix":
        """The matrices of the samples `rows`."""

    @abstractmethod
    def put(self, rows: Tensor, part: "Matrix") -> "Matrix":
        """These matrices, with those of the samples `rows` replaced by `part`."""

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

    def product(self, v: Tensor, transposed: bool = False) -> Tensor:
        entries = self.entries.mT if transposed else self.entries
        return products(entries, v).reshape(v.shape)

    def dense(self) -> Tensor:
        return self.entries

    def inverse_norm(self) -> Tensor:
        found, info = torch.linalg.inv_ex(self.entries.double())
        return torch.linalg.matrix_norm(found).masked_fill(info != 0, torch.inf)

    def take(self, rows: Tensor) -> "Dense":
        return Dense(self.entries[rows])

    def put(self, rows: Tensor, part: Matrix) -> "Dense":
        return Dense(self.entries.index_copy(0, rows, part.dense()))

    def where(self, chosen: Tensor, other: Matrix) -> "Dense":
        return Dense(torch.where(chosen[:, None, None], self.entries, other.dense()))

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """LU factors, pivots, and (batch,) whether all pivots are nonzero."""
        factors, pivots, info = torch.linalg.lu_factor_ex(self.entries)
        return factors, pivots, info == 0


def times(A: Tensor, v: Tensor) -> Tensor:
    """A v for small matrices (..., k, k), in fewer operations than `matmul`."""
    return (A * v.unsqueeze(-2)).sum(-1)


def inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    """The inverses of small matrices (..., k, k), and (...) whether they exist. Up to k = 2 from the determinant, in a
    few operations for the whole batch."""
    if A.shape[-1] > 2:
        found, info = torch.linalg.inv_ex(A)
        return found, info == 0
    if A.shape[-1] == 1:
        return A.reciprocal(), A.flatten(-2).squeeze(-1) != 0
    a, b, c, d = A.flatten(-2).unbind(-1)
    determinant = torch.addcmul(a * d, b, c, value=-1)
    adjugate = torch.stack([d, -b, -c, a], dim=-1)
    return (adjugate / determinant.unsqueeze(-1)).view(A.shape), determinant != 0


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
