"""Linear parts with their own solve: L in F(t, y) = L y + N(t, y)."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from resolvent.equation.torch_func import outside_inference

Number = float | Tensor


class LinearPart(ABC):
    """A linear map L of states with a solve of its own, for a field F(t, y) = L y + N(t, y).

    A field declares it by its attribute `linear_part`. Solvers use it as a preconditioner, and additive schemes such as
    `rs.schemes.tableaux.KENCARP4` treat it implicitly. Both maps must be differentiable by autograd, treat each sample
    alone, and all samples alike.
    """

    @abstractmethod
    def product(self, y: Tensor) -> Tensor:
        """L y, for y (batch, *shape)."""

    @abstractmethod
    def solve(self, r: Tensor, tau: Number) -> Tensor:
        """(I - tau L)^{-1} r, for r (batch, *shape) and tau a number, or a tensor that multiplies r."""


class DiagonalPart(LinearPart):
    """L y = c y, for a number c or a tensor that broadcasts to a sample. A field may also declare c itself."""

    def __init__(self, c: Number) -> None:
        self.c = c

    def product(self, y: Tensor) -> Tensor:
        return self.c * y

    def solve(self, r: Tensor, tau: Number) -> Tensor:
        return r / (1 - tau * self.c)


class MatrixPart(LinearPart):
    """L as a matrix (n, n) that acts on the flattened state of a sample.

    A solve factorizes I - tau L, once for each different tau of the batch.
    """

    def __init__(self, matrix: Tensor) -> None:
        if not isinstance(matrix, Tensor) or matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
            got = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"matrix must be a tensor (n, n), got {got}.")
        self.matrix = matrix

    def product(self, y: Tensor) -> Tensor:
        return (y.flatten(1) @ outside_inference(self.matrix).mT).reshape(y.shape)

    def solve(self, r: Tensor, tau: Number) -> Tensor:
        matrix = outside_inference(self.matrix)
        identity = torch.eye(len(matrix), dtype=r.dtype, device=r.device)
        columns = r.flatten(1)[:, :, None]
        if isinstance(tau, Tensor) and tau.dim() > 0:
            return torch.linalg.solve(identity - tau.reshape(-1, 1, 1) * matrix, columns).reshape(r.shape)
        return torch.linalg.solve(identity - tau * matrix, columns[:, :, 0].mT).mT.reshape(r.shape)


class FourierPart(LinearPart):
    """L as a multiplication of Fourier coefficients: a translation-invariant operator on a periodic grid.

    Arguments:
        symbol: the factors of the coefficients as `torch.fft.rfftn` orders them, real or complex; it broadcasts to
            those of a sample. `FourierPart.laplacian` makes that of a Laplacian.
        dims: the number of grid dimensions, which are the last ones of a sample.
    """

    def __init__(self, symbol: Tensor, dims: int = 1) -> None:
        if not isinstance(symbol, Tensor) or symbol.dim() < dims:
            raise ValueError(f"symbol must be a tensor with {dims} dimensions or more, got {symbol!r}.")
        self.symbol, self.dims = symbol, dims

    @classmethod
    def laplacian(cls, shape: tuple[int, ...], spacing: Number = 1.0, factor: Number = 1.0) -> "FourierPart":
        """`factor` times the second differences on a periodic grid: (y_{i-1} - 2 y_i + y_{i+1}) / spacing^2 in each
        direction.

        Arguments:
            shape: of the grid.
            spacing: of its points.
            factor: a number or a tensor, which may have more dimensions in front, such as one for each species.
        """
        axes = [torch.arange(n // 2 + 1 if i == len(shape) - 1 else n) / n for i, n in enumerate(shape)]
        waves = torch.meshgrid(*(4 * torch.sin(torch.pi * axis.double()) ** 2 for axis in axes), indexing="ij")
        return cls(-torch.stack(waves).sum(0) / spacing**2 * factor, len(shape))

    def product(self, y: Tensor) -> Tensor:
        return self._multiply(y, self._symbol(y))

    def solve(self, r: Tensor, tau: Number) -> Tensor:
        return self._multiply(r, 1 / (1 - tau * self._symbol(r)))

    def _symbol(self, y: Tensor) -> Tensor:
        kind = torch.promote_types(y.dtype, torch.complex64) if self.symbol.is_complex() else y.dtype
        return outside_inference(self.symbol).to(device=y.device, dtype=kind)

    def _multiply(self, y: Tensor, factors: Tensor) -> Tensor:
        axes = tuple(range(-self.dims, 0))
        return torch.fft.irfftn(factors * torch.fft.rfftn(y, dim=axes), s=y.shape[-self.dims :], dim=axes)


def as_linear_part(part: Number | LinearPart) -> LinearPart:
    """The linear part; a number or a tensor becomes a diagonal."""
    return part if isinstance(part, LinearPart) else DiagonalPart(part)
