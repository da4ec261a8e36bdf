"""The norm of any linear map that is given as a function."""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LinearMap = Callable[[Tensor], Tensor]

_KRYLOV = 20  # vectors kept by one Lanczos sweep: the cost of orthogonalising them stays below that of the map


def power_iteration(A: LinearMap, start: Tensor, num_steps: int = 1) -> tuple[Tensor, Tensor]:
    """Estimate the norm of a linear map from below by the power method.

        v <- A^T A v / |A^T A v|,      A^T A v = d(|A v|^2 / 2)/dv

    The error shrinks by (sigma_2 / sigma_1)^2 a step. It is the cheap way to follow a slowly changing map; to measure
    a map from nothing use `operator_norm`.

    Arguments:
        A: a linear map of tensors with the shape of `start`, differentiable.
        start: any tensor that is not orthogonal to the leading singular vector.
        num_steps: how often A^T A is applied.

    Returns:
        The estimate |A v|, 0-d, and the unit vector v, shaped like `start`.

    Reference: Golub and Van Loan, Matrix Computations, section 7.3.
    """
    v = _unit(start.detach())
    for _ in range(num_steps):
        v = _unit(_gram(A, v))
    with torch.no_grad():
        return torch.linalg.vector_norm(A(v)), v


def operator_norm(
    A: LinearMap, start: Tensor | Sequence[int], *, rtol: float | None = None, max_sweeps: int = 200
) -> tuple[Tensor, Tensor]:
    """Compute the norm of a linear map by the restarted Lanczos method on A^T A.

    It needs about as many products as the square root of what the power method needs, which matters for convolutions:
    their largest singular values lie close together. It stops when |A^T A v - sigma^2 v| <= rtol sigma^2, so that
    sigma^2 is a singular value squared to within a factor 1 +- rtol, and from a generic start the largest one; or when
    a sweep of 20 products no longer raises sigma^2 beyond rounding. The result approaches the norm from below: it is no
    certificate (see `norm_bound`).

    Arguments:
        A: a linear map, differentiable.
        start: a tensor to start from, or the shape of one: then the start is a fixed pseudo-random tensor of the
            default dtype, the same at each call.
        rtol: tolerance; by default 1e-6, or what the dtype allows.
        max_sweeps: how often 20 products are made; a RuntimeWarning says so when they were too few.

    Returns:
        The norm |A v|, 0-d, and the unit vector v, shaped like the input.

    Reference: Golub and Van Loan, Matrix Computations, chapter 10.
    """
    v = _unit(start.detach() if isinstance(start, Tensor) else generic_vector(start))
    tolerance = max(1e-6, 32 * torch.finfo(v.dtype).eps) if rtol is None else rtol
    before = 0.0
    for _ in range(max_sweeps):
        v, eigenvalue, residual = _lanczos_sweep(A, v)
        if residual <= tolerance or eigenvalue - before <= 4 * torch.finfo(v.dtype).eps * eigenvalue:
            break
        before = eigenvalue
    else:
        warnings.warn(
            f"the norm of the operator has a relative residual of {residual:.1e} > {tolerance:.1e} after {max_sweeps} "
            "sweeps: it may be too small; increase max_sweeps or rtol",
            RuntimeWarning,
            stacklevel=2,
        )
    with torch.no_grad():
        return torch.linalg.vector_norm(A(v)), v


def generic_vector(shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A Gaussian tensor that is the same in every run and leaves the global random state alone."""
    return torch.randn(tuple(shape), dtype=dtype, generator=torch.Generator().manual_seed(0))


def _lanczos_sweep(A: LinearMap, v: Tensor) -> tuple[Tensor, float, float]:
    """Best vector in the Krylov space of A^T A and v, its eigenvalue, and its residual relative to that."""
    basis = [v.flatten()]
    diagonal: list[float] = []
    offdiagonal: list[float] = []
    for _ in range(_KRYLOV):
        w = _gram(A, basis[-1].view_as(v)).flatten()
        diagonal.append(float(w @ basis[-1]))
        Q = torch.stack(basis)
        for _ in range(2):  # once is not enough to keep a basis orthogonal in floating point
            w = w - Q.T @ (Q @ w)
        offdiagonal.append(float(torch.linalg.vector_norm(w)))
        # The space is exhausted when what is left of w is rounding.
        if offdiagonal[-1] <= 16 * torch.finfo(v.dtype).eps * max(diagonal):
            break
        basis.append(w / offdiagonal[-1])
    size = len(diagonal)
    T = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    beside = torch.tensor(offdiagonal[: size - 1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(T + torch.diag(beside, 1) + torch.diag(beside, -1))
    best = _unit(vectors[:, -1].to(v) @ torch.stack(basis[:size]))
    eigenvalue = float(values[-1])
    residual = offdiagonal[-1] * abs(float(vectors[-1, -1]))
    return best.view_as(v), eigenvalue, residual / eigenvalue if eigenvalue > 0 else 0.0


def _gram(A: LinearMap, v: Tensor) -> Tensor:
    """A^T A v as the gradient of |A v|^2 / 2, so that A need not come with its transpose."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        energy = A(v).square().sum() / 2
    if not math.isfinite(float(energy.detach())):
        raise ValueError("the norm of the operator is not finite: its weight holds nan or inf, or overflows")
    return torch.autograd.grad(energy, v)[0]


def _unit(v: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(v)
    # The null map sends every vector to 0; any vector is then a leading one.
    return v / norm if norm > 0 else torch.ones_like(v) / math.sqrt(v.numel())
