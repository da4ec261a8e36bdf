"""What keeps methods that are only locally convergent from running away: a way back, and a reason to forget."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from resolvent.equation.norms import select

# A residual this much above the best one sends the sample back to it.
_LOST = 10.0
# After so many steps without a better residual, what was learned is misleading.
_GIVE_UP = 12
# How much shorter the steps of a sample become that was misled.
SHORTEN = 0.1


@dataclass
class Best:
    """The best iterate of each sample, its defect (or whatever stands for it), and the steps since it was found."""

    w: Tensor
    r: Tensor
    norm: Tensor
    idle: Tensor

    @classmethod
    def first(cls, w: Tensor, r: Tensor, norm: Tensor) -> Self:
        return cls(w, r, norm, torch.zeros_like(norm))

    def kept(self, norm: Tensor) -> Tensor:
        """(batch,), who stays where the residual is `norm`; the others are lost and go back to the best iterate."""
        return norm <= _LOST * self.norm

    def update(self, w: Tensor, r: Tensor, norm: Tensor) -> tuple["Best", Tensor]:
        """The best so far; (batch,) who was misled and has to forget.

        A step that got lost has still shown something of F, and on a linear problem all of it is true. So it is
        remembered, as long as it stayed within the finite numbers and the memory still leads to better residuals.
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
