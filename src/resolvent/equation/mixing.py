"""Mixings: how the images of several rows, the stages of a step or the layers of a group, are combined.

Large batches of small states are stored with samples as columns: the entries of (batch, rows, k) lie in memory as those
of (k, rows, batch). Every operation then runs over contiguous memory, and a mixing is k products with one small matrix.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from resolvent.equation.norms import in_columns
from resolvent.equation.torch_func import outside_inference, transforming

# A product with the matrix of layers is faster than running sums from so many numbers in a row on, if it takes so many
# multiplications: torch has a slow kernel for smaller ones.
_LEAST_IN_ROWS, _LEAST_MULTIPLICATIONS = 16, 512


class Mixing(ABC):
    """A matrix M that maps rows (batch, rows, *shape) to the sums over j of m_ij rows_j."""

    @abstractmethod
    def __call__(self, rows: Tensor) -> Tensor:
        """M rows."""

    @abstractmethod
    def matrix(self, count: int, like: Tensor) -> Tensor:
        """M for `count` rows, of the type of `like`."""

    @abstractmethod
    def outside_inference(self) -> Self:
        """The same with copies of tensors made in inference mode, which autograd refuses to save."""


@dataclass(frozen=True)
class MatrixMixing(Mixing):
    """Any matrix, (rows, rows)."""

    entries: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        if in_columns(rows):
            return _by_columns(self.entries.to(rows.dtype), rows)
        columns = rows if rows.dim() == 3 else rows.flatten(2)
        # In one product per sample: `einsum` takes seven times the operations.
        sums = torch.bmm(self.entries.to(rows.dtype).expand(rows.shape[0], -1, -1), columns)
        return sums if rows.dim() == 3 else sums.reshape(rows.shape)

    def matrix(self, count: int, like: Tensor) -> Tensor:
        return self.entries.to(like)

    def outside_inference(self) -> Self:
        return type(self)(outside_inference(self.entries))


@dataclass(frozen=True)
class LayerMixing(Mixing):
    """The matrix of consecutive theta layers: theta on the diagonal, ones below it, and zeros above.

    For rows of few numbers running sums are several times as fast as products with small matrices. Longer rows are
    multiplied with the matrix on a CPU: the derivative of the sums takes six operations.
    """

    theta: float | Tensor

    def __call__(self, rows: Tensor, transposed: bool = False) -> Tensor:
        if in_columns(rows):
            entries = self.matrix(rows.shape[1], rows)
            return _by_columns(entries.t() if transposed else entries, rows)
        if not transposed and self._multiplies(rows):
            return MatrixMixing(self.matrix(rows.shape[1], rows))(rows)
        return running_sums(rows, self.theta, transposed)

    def _multiplies(self, rows: Tensor) -> bool:
        """Whether a product with the matrix is faster than sums, and rounds like them: products may be set to less than
        single precision."""
        if not rows.is_cpu or isinstance(self.theta, Tensor) or transforming():
            return False
        count, numbers = rows.shape[1], rows.shape[2:].numel()
        large = numbers >= _LEAST_IN_ROWS and count * count * numbers >= _LEAST_MULTIPLICATIONS
        return large and torch.get_float32_matmul_precision() == "highest"

    def matrix(self, count: int, like: Tensor) -> Tensor:
        if isinstance(self.theta, Tensor) or not like.is_cpu or torch.compiler.is_dynamo_compiling():
            return _layers(self.theta, count, like.dtype, like.device)
        return _known_layers(self.theta, count, like.dtype, like.device)

    def inverse_of_ones(self, like: Tensor) -> Tensor | None:
        """v with M^T v = 1, (rows,), for rows (batch, rows, *shape); None for theta below 1/2, where v grows with the
        number of rows."""
        theta = float(self.theta)
        if theta < 0.5:
            return None
        v, total = [], 0.0
        for _ in range(like.shape[1]):
            v.append((1 - total) / theta)
            total += v[-1]
        return torch.tensor(v[::-1], dtype=like.dtype, device=like.device)

    def outside_inference(self) -> Self:
        return type(self)(outside_inference(self.theta))


def _layers(theta: float | Tensor, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix of `count` layers."""
    ones = torch.ones(count, count, dtype=dtype, device=device)
    return ones.tril() - (1 - theta) * torch.eye(count, dtype=dtype, device=device)


# Every group of a pass has the same matrix.
_known_layers = lru_cache(maxsize=64)(_layers)


def running_sums(rows: Tensor, theta: float | Tensor, transposed: bool) -> Tensor:
    """The product with the matrix of `LayerMixing`, or with its transpose."""
    sums = rows.flip(1).cumsum(1).flip(1) if transposed else rows.cumsum(1)
    if isinstance(theta, Tensor):
        return sums - (1 - theta) * rows
    return sums if theta == 1 else torch.sub(sums, rows, alpha=1 - theta)


def _by_columns(entries: Tensor, rows: Tensor) -> Tensor:
    columns = rows.permute(2, 1, 0)
    return torch.bmm(entries.expand(len(columns), -1, -1), columns).permute(2, 1, 0)
