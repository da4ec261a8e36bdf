"""What quasi-Newton methods remember: ring buffers of past vectors, and the best iterate to return to."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from resolvent.equation.norms import dot, flat, products, select


def ring(length: int, like: Tensor) -> Tensor:
    """(batch, length, n) zeros for vectors like (batch, *shape)."""
    return torch.zeros_like(flat(like))[:, None].repeat(1, length, 1)


def remember(history: Tensor, slot: int, vector: Tensor) -> Tensor:
    """The ring with `vector` in `slot`; it grows if `slot` is its length. In place, unless autograd records."""
    if slot == history.shape[1]:
        return torch.cat([history, flat(vector)[:, None]], dim=1)
    if torch.is_grad_enabled():
        history = history.clone()
    history[:, slot] = flat(vector)
    return history


def coefficients(history: Tensor, vector: Tensor) -> Tensor:
    """The inner products of `vector` with every vector of the ring: (batch, length)."""
    if history.shape[1] == 1:
        # Most solves have only one column, and many small matrix products are slow.
        return dot(history[:, 0], flat(vector))[:, None]
    return products(history, vector)


def combine(history: Tensor, weights: Tensor, like: Tensor) -> Tensor:
    """The sum of the ring's vectors with weights (batch, length)."""
    if history.shape[1] == 1:
        return (weights * history[:, 0]).reshape(like.shape)
    return (weights[:, None, :] @ history).reshape(like.shape)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, torch.ones_like(b), b))


# A sample whose residual exceeds its best by this factor returns to its best iterate.
_LOST = 10.0
# After this many steps without a better residual, the history of a sample is cleared.
_GIVE_UP = 12
# The factor by which its steps are then shortened.
SHORTEN = 0.1


@dataclass
class Best:
    """The best iterate of each sample, its defect (preconditioned or not), and the steps since it was found."""

    w: Tensor
    r: Tensor
    norm: Tensor
    idle: Tensor

    @classmethod
    def first(cls, w: Tensor, r: Tensor, norm: Tensor) -> Self:
        return cls(w, r, norm, torch.zeros_like(norm))

    def kept(self, norm: Tensor) -> Tensor:
        """Mask (batch,) of samples that stay at an iterate with residual `norm`; the others return to their best."""
        return norm <= _LOST * self.norm

    def update(self, w: Tensor, r: Tensor, norm: Tensor) -> tuple["Best", Tensor]:
        """The best so far, and the mask (batch,) of samples whose history must be cleared.

        A rejected step still carries information on F, which is exact for a linear problem. So it stays in the history,
        as long as its residual is finite and the history still leads to better residuals.
        """
        better = norm < self.norm
        idle = (self.idle + 1).masked_fill(better, 0.0)
        misled = ~norm.isfinite() | (idle >= _GIVE_UP)
        best = Best(
            select(better, w, self.w),
            select(better, r, self.r),
            torch.where(better, norm, self.norm),
            idle.masked_fill(misled, 0.0),
        )
        return best, misled
