"""Evaluations of large batches in parts that stay in the cache of a processor core."""

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.equation.function import Function, value_of

ROWS = 4096
"""The rows of one part. Smaller parts take longer to call than they save."""


def in_parts(F: Function, like: Tensor) -> Callable[..., Tensor]:
    """`F.call`, evaluated in parts if the batch is large; needs `rowwise`.

    An elementwise operation on a large batch waits for memory, and so does its derivative. In parts, a batch goes
    through all of F before the next part begins, and the backward pass goes through the parts in turn, so that what it
    stores besides the graph is that of one part. On other devices than the CPU the whole batch is faster.

    Arguments:
        F: the function.
        like: (batch, *shape), of the device and the shape that F is called with.
    """
    if not like.is_cpu:
        return F.call
    value = value_of(F.value_and_jacobian) if like.dim() == 2 else None
    # A closed form divides the batch itself, as it knows what it stores.
    return _divided(F.call) if value is None else value


def _divided(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def divided(w: Tensor, *conditions: Tensor) -> Tensor:
        if len(w) < 2 * ROWS:
            return call(w, *conditions)
        parts = zip(*(x.split(ROWS) for x in (w, *conditions)), strict=True)
        return torch.cat([call(*part) for part in parts])

    return divided
