"""Norms of linear maps given as functions, by the power method and the Lanczos method."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.jacobian import Jacobian
from resolvent.equation.modes import as_number, derivatives_allowed

LinearMap = Callable[[Tensor], Tensor]

# A sweep of the Lanczos method extends the basis to the first size, small enough that orthogonalising costs less than
# the map. It then keeps the best vectors, as many as the second number, because the largest singular values are close.
_KRYLOV, _KEPT = 24, 8


def power_iteration(A: LinearMap, start: Tensor, num_steps: int = 1) -> tuple[Tensor, Tensor]:
    """Estimates the norm of a linear map from below by the power method.

        v <- A^T A v / |A^T A v|,      A^T A v = d(|A v|^2 / 2)/dv

    The error shrinks by (sigma_2 / sigma_1)^2 per step. It is a cheap way to track a slowly changing map; without a
    good start use `operator_norm`.

    Arguments:
        A: a linear map of tensors with the shape of `start`, differentiable.
        start: any tensor that is not orthogonal to the leading singular vector.
        num_steps: the number of products with A^T A.

    Returns:
        The estimate |A v|, 0-d, and the unit vector v, shaped like `start`. The estimate of a map that is not finite is
        not finite either.

    Reference: Golub and Van Loan, Matrix Computations, section 7.3.
    """
    with torch.no_grad(), derivatives_allowed(start.device):
        v = _unit(start.detach())
        for _ in range(num_steps):
            v = _unit(_gram(A, v))
        return torch.linalg.vector_norm(A(v)), v


def operator_norm(
    A: LinearMap, start: Tensor | Sequence[int], *, rtol: float | None = None, max_sweeps: int = 200
) -> tuple[Tensor, Tensor]:
    """Computes the norm of a linear map by the Lanczos method on A^T A with thick restarts.

    It needs about the square root of the number of products of the power method, which matters for convolutions: their
    largest singular values are close. It stops when |A^T A v - sigma^2 v| <= rtol sigma^2; then sigma^2 is a squared
    singular value to within a factor 1 +- rtol, and from a generic start the largest one. It also stops when a sweep of
    16 products no longer increases sigma^2 beyond rounding. The result approaches the norm from below: it is not a
    certificate (see `norm_bound`).

    Arguments:
        A: a linear map, differentiable.
        start: a tensor to start from, or its shape: then the start is a fixed pseudo-random tensor of the default
            dtype.
        rtol: tolerance; by default 1e-6, or what the dtype allows.
        max_sweeps: the most sweeps of 16 products; a RuntimeWarning reports if they were too few.

    Returns:
        The norm |A v|, 0-d, and the unit vector v, shaped like the input.

    Reference: Wu and Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, 2000.
    """
    v = _unit(start.detach() if isinstance(start, Tensor) else generic_vector(start))
    with torch.no_grad(), derivatives_allowed(v.device):
        v = _leading_vector(A, v, rtol, max_sweeps)
        return torch.linalg.vector_norm(A(v)), v


def _leading_vector(A: LinearMap, v: Tensor, rtol: float | None, max_sweeps: int) -> Tensor:
    """The unit vector that A amplifies most, by sweeps from v."""
    eps = torch.finfo(v.dtype).eps
    tolerance = max(1e-6, 32 * eps) if rtol is None else rtol
    space = _Krylov(v.new_empty(0, v.numel()), torch.empty(0, 0, dtype=torch.float64), v.flatten(), 0.0)
    before = 0.0
    for _ in range(max_sweeps):
        while len(space.H) < _KRYLOV:
            space.extend(A, v.shape)
            if space.leak <= 16 * eps * float(space.H.trace()):  # only rounding is left: the space is invariant
                break
        eigenvalue, residual = space.restrict(_KEPT)
        if residual <= tolerance or eigenvalue <= before * (1 + eps):
            break
        before = eigenvalue
    else:
        warnings.warn(
            f"the norm of the operator has a relative residual of {residual:.1e} > {tolerance:.1e} after {max_sweeps} "
            "sweeps: it may be too small; increase max_sweeps or rtol",
            RuntimeWarning,
            stacklevel=3,
        )
    return _unit(space.basis[-1].view_as(v))


def generic_vector(shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Pseudo-random numbers between -1/2 and 1/2, the same in every run.

    They come from a formula, because torch does not draw random numbers inside vmap.
    """
    scattered = 43758.5453 * torch.sin(12.9898 * torch.arange(1, math.prod(shape) + 1, dtype=torch.float64))
    entries = scattered - scattered.floor() - 0.5
    return entries.reshape(tuple(shape)).to(dtype or torch.get_default_dtype())


@dataclass
class _Krylov:
    """An orthonormal basis Q of a space in which A^T A acts as H, up to a component along the next vector.

    A^T A Q = Q H + leak * next e_last^T
    """

    basis: Tensor  # (size, entries), rows
    H: Tensor  # (size, size), float64
    next: Tensor  # (entries,)
    leak: float

    def extend(self, A: LinearMap, shape: torch.Size) -> None:
        """Adds the next vector to the basis."""
        size = len(self.H)
        self.basis = torch.cat((self.basis, self.next[None]))
        w = _gram(A, self.next.reshape(shape)).flatten()
        column = self.basis @ w
        w = w - column @ self.basis
        w = w - (self.basis @ w) @ self.basis  # again: once is not enough in floating point
        self.leak = require_finite(torch.linalg.vector_norm(w))
        H = torch.zeros(size + 1, size + 1, dtype=torch.float64)
        H[:size, :size] = self.H
        H[size] = H[:, size] = column.double().cpu()
        self.H = H
        self.next = w / self.leak if self.leak > 0 else w

    def restrict(self, size: int) -> tuple[float, float]:
        """Keeps the best vectors, the leading one last. Returns its eigenvalue, and its residual relative to that."""
        values, vectors = torch.linalg.eigh(self.H)
        self.basis = vectors[:, -size:].T.to(self.basis) @ self.basis
        self.H = torch.diag(values[-size:])
        eigenvalue, residual = float(values[-1]), self.leak * abs(float(vectors[-1, -1]))
        return eigenvalue, residual / eigenvalue if eigenvalue > 0 else 0.0


def _gram(A: LinearMap, v: Tensor) -> Tensor:
    """A^T A v, by automatic differentiation of A, so that its transpose is not needed."""
    jacobian = Jacobian(A, v)
    return jacobian.transposed_product(jacobian.value)


def _unit(v: Tensor) -> Tensor:
    # Does not synchronise with the device, which a CUDA graph does not allow.
    norm = torch.linalg.vector_norm(v)
    # The zero map sends every vector to 0; any vector is then a leading one.
    return torch.where((norm > 0) & norm.isfinite(), v / norm, 1 / math.sqrt(v.numel()))


def require_finite(norm: Tensor) -> float:
    """The norm as a number; waits for the device."""
    value = as_number(norm, "operator_norm")
    if not math.isfinite(value):
        raise ValueError("the norm of the operator is not finite: its weight holds nan or inf, or overflows")
    return value
