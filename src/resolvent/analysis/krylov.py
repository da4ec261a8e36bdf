"""Extreme eigenvalues of linear maps given as functions, for all samples of a batch at once."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.modes import derivatives_allowed
from resolvent.equation.norms import flat
from resolvent.equation.torch_func import all_true, any_true, whole
from resolvent.spectral.power import generic_vector

LinearMap = Callable[[Tensor], Tensor]

_LOOK_EVERY = 8

_WANTED: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda eigenvalues: eigenvalues.abs(),
    "rightmost": lambda eigenvalues: eigenvalues.real,
    "leftmost": lambda eigenvalues: -eigenvalues.real,
}


@dataclass(frozen=True)
class KrylovSpace:
    """A map on the space spanned by a vector and its images, A Q = Q H + leak q e_m^T.

    Attributes:
        H: (batch, m, m), the map restricted to the space.
        leak: (batch,), the size of the component that leaves the space.
    """

    H: Tensor
    leak: Tensor

    def extreme(self, count: int, which: str) -> tuple[Tensor, Tensor]:
        """The requested eigenvalues of H, (batch, count), and the residuals |A x - lambda x| of their vectors x."""
        eigenvalues, vectors = torch.linalg.eig(self.H)
        best = rank(eigenvalues, which)[:, :count]
        last = vectors[:, -1].gather(1, best).abs()
        return eigenvalues.gather(1, best), self.leak[:, None] * last


def extreme_eigenvalues(
    A: LinearMap,
    like: Tensor,
    count: int = 1,
    which: str = "largest",
    *,
    rtol: float | None = None,
    max_size: int = 200,
) -> Tensor:
    """Extreme eigenvalues of a linear map, by the Arnoldi method.

    The space spanned by v, A v, A^2 v, ... is extended until the requested eigenvalues of A on it have residuals
    |A x - lambda x| <= rtol |A|, or until it is the whole space. Eigenvalues in the interior of the spectrum are found
    last, and copies of a multiple one may be missed. For a symmetric map this is the Lanczos method.

    Arguments:
        A: maps (batch, *shape) to the same shape, with one linear map per sample.
        like: (batch, *shape), for shape, dtype (real or complex) and device.
        count: the number of eigenvalues.
        which: "largest" in modulus, "rightmost" or "leftmost".
        rtol: tolerance; None takes 1e-6, or what the dtype allows.
        max_size: the largest dimension of the space; a RuntimeWarning reports if it was too small.

    Returns:
        Complex (batch, count), the most extreme first.

    Reference: Saad, Numerical methods for large eigenvalue problems, chapter 6.
    """
    size = flat(like).shape[1]
    check_wanted(count, size, which)
    limit = min(size, max(max_size, count))
    tolerance = max(1e-6, 32 * torch.finfo(like.dtype).eps) if rtol is None else rtol
    with derivatives_allowed(like.device):
        for space in _growing_spaces(A, like, count, limit):
            values, residuals = space.extreme(count, which)
            scale = torch.linalg.matrix_norm(space.H, 2)
            if all_true(residuals <= tolerance * scale[:, None]):
                return values
    if limit < size:
        warnings.warn(
            f"the eigenvalues have a relative residual of {whole(residuals / scale[:, None]).max().item():.1e} > "
            f"{tolerance:.1e} in a space of {limit} vectors: increase max_size or rtol",
            RuntimeWarning,
            stacklevel=2,
        )
    return values


def check_wanted(count: int, size: int, which: str) -> None:
    """Raises unless `count` lies between 1 and `size` and `which` is valid."""
    if which not in _WANTED:
        raise ValueError(f"which must be one of {tuple(_WANTED)}, got {which!r}.")
    if not 1 <= count <= size:
        raise ValueError(f"count must lie between 1 and the {size} unknowns of a sample, got {count}.")


def rank(eigenvalues: Tensor, which: str) -> Tensor:
    """Indices that sort eigenvalues (batch, n), the most extreme first."""
    return _WANTED[which](eigenvalues).argsort(dim=1, descending=True)


def _growing_spaces(A: LinearMap, like: Tensor, first: int, limit: int) -> Iterator[KrylovSpace]:
    """Spaces of `first` vectors, a few more, and so on up to `limit`."""
    batch, size = flat(like).shape
    start = _generic_unit(like.new_empty(batch, 0, size))
    w = flat(A(start.reshape(like.shape)))
    # Made from an image of A: inside vmap, only a tensor made from a batched one can hold one value per copy.
    Q, H = w.new_empty(batch, limit + 1, size), w.new_zeros(batch, limit + 1, limit)
    Q[:, 0] = start
    for m in range(1, limit + 1):
        w = w if m == 1 else flat(A(Q[:, m - 1].reshape(like.shape)))
        if not all_true(w.isfinite()):
            raise ValueError("the derivative holds nan or inf: look at the states and the weights of the field.")
        for _ in range(2):  # once is not enough in floating point
            overlap = torch.einsum("bkn,bn->bk", Q[:, :m].conj(), w)
            H[:, :m, m - 1] += overlap
            w = w - torch.einsum("bkn,bk->bn", Q[:, :m], overlap)
        leak = torch.linalg.vector_norm(w, dim=1)
        # If only rounding is left, the space is invariant: continue in a new direction.
        ended = leak <= 16 * torch.finfo(like.dtype).eps * torch.linalg.vector_norm(H[:, :m, m - 1], dim=1)
        leak = torch.where(ended, 0.0, leak)
        if m == limit or (m >= first and (m - first) % _LOOK_EVERY == 0):
            yield KrylovSpace(H[:, :m, :m].clone(), leak)
        if m < limit:
            H[:, m, m - 1] = leak
            fresh = _generic_unit(Q[:, :m]) if any_true(ended) else w
            Q[:, m] = torch.where(ended[:, None], fresh, w / torch.where(ended, 1.0, leak)[:, None])


def _generic_unit(Q: Tensor) -> Tensor:
    """A unit vector for each sample, (batch, n), orthogonal to the rows of Q, (batch, m, n); the same in every run."""
    batch, m, size = Q.shape
    v = generic_vector((m + 1, size))[m].to(Q).expand(batch, size)
    for _ in range(2):
        v = v - torch.einsum("bkn,bk->bn", Q, torch.einsum("bkn,bn->bk", Q.conj(), v))
    return v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
