"""Ring buffers of past vectors, one per sample, for quasi-Newton methods."""

import torch
from torch import Tensor

from resolvent.equation.norms import dot, flat


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
    return (history @ flat(vector)[:, :, None]).squeeze(2)


def combine(history: Tensor, weights: Tensor, like: Tensor) -> Tensor:
    """The sum of the ring's vectors with weights (batch, length)."""
    if history.shape[1] == 1:
        return (weights * history[:, 0]).reshape(like.shape)
    return (weights[:, None, :] @ history).reshape(like.shape)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, torch.ones_like(b), b))
