"""Safeguards for locally convergent methods: return to the best iterate, and clear the history."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from resolvent.equation.norms import select

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
