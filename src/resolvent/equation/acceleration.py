"""Acceleration of a fixed point by its last changes, for the samples that contract slowly or not at all."""

import torch
from torch import Tensor

from resolvent.equation.norms import flat, length, memory_format, products

# Added to the diagonal of the normal equations, whose other entries there are one, in units of rounding.
_REGULARIZATION = 10.0
# The first changes that there is room for: most solves end before they have more.
_FIRST_ROOM = 4


class Acceleration:
    """Anderson's method, w <- g - dG gamma with the gamma that minimises |f - dF gamma|, without its safeguards.

    g(w) is the image of the fixed point and f = g(w) - w its residual. The columns of dF and dG are their last changes,
    scaled so that those of dF have unit length: in the normal equations the last changes, which are the smallest, are
    then not lost in rounding.

    Arguments:
        memory: the most changes that are kept.

    Reference: Walker & Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 49, 2011.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._plain: tuple[Tensor, Tensor] | None = None
        # f and g of the last iterate, (batch, 2 n), their scaled changes, (batch, room, 2 n), and dF^T dF.
        self._pair: Tensor | None = None
        self._changes: Tensor | None = None
        self._gram: Tensor | None = None
        self._count = 0

    def note(self, w: Tensor, image: Tensor) -> None:
        """Remembers a plain step, from w to its image."""
        self._plain, self._pair = (w, image), None

    def forget(self) -> None:
        """Frees the last plain step."""
        self._plain = None

    def next(self, w: Tensor, image: Tensor, chosen: Tensor) -> Tensor:
        """The next iterate of the `chosen` samples, (batch,); that of the others is the image."""
        before = self._pair if self._plain is None else _pair(*self._plain)
        pair, n = _pair(w, image), image[0].numel()
        self._plain, self._pair = None, pair
        if before is None:
            return image
        changes, gram = self._keep(pair - before, chosen, n)
        right = products(changes[..., :n], pair[:, :n])[:, :, None]
        gamma = torch.linalg.solve_ex(gram, right)[0].nan_to_num_(0.0, 0.0, 0.0)
        moved = torch.baddbmm(pair[:, None, n:], gamma.mT, changes[..., n:], alpha=-1).reshape(image.shape)
        return moved.contiguous(memory_format=memory_format(image) or torch.contiguous_format)

    def _keep(self, change: Tensor, chosen: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Replaces the oldest change by this one. Returns all of them, and the matrix of the normal equations."""
        slot, held = self._count % self._memory, min(self._count + 1, self._memory)
        changes, gram = self._with_room(held, change)
        # Zero where a sample has not moved, and for the samples that are not chosen.
        scale = chosen / length(change[:, :n]).clamp_min(torch.finfo(change.dtype).tiny)
        new = torch.mul(change, scale[:, None], out=changes[:, slot])
        column = products(changes[:, :held, :n], new[:, :n])
        gram[:, slot, :held] = column
        gram[:, :held, slot] = column
        self._count += 1
        small = _REGULARIZATION * torch.finfo(gram.dtype).eps
        return changes[:, :held], gram[:, :held, :held] + small * torch.eye(held, dtype=gram.dtype, device=gram.device)

    def _with_room(self, held: int, like: Tensor) -> tuple[Tensor, Tensor]:
        batch, width = like.shape
        if self._changes is None or self._gram is None:
            self._changes = like.new_empty(batch, min(_FIRST_ROOM, self._memory), width)
            self._gram = like.new_empty(batch, self._memory, self._memory)
        if held > self._changes.shape[1]:
            more = like.new_empty(batch, self._memory - self._changes.shape[1], width)
            self._changes = torch.cat([self._changes, more], 1)
        return self._changes, self._gram


def _pair(w: Tensor, image: Tensor) -> Tensor:
    g = flat(image)
    return torch.cat([g - flat(w), g], 1)
