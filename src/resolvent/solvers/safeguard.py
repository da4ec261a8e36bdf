"""What keeps methods that are only locally convergent from running away: a way back, and a reason to forget."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from resolvent.core.problem import select

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

    def update(self, w: Tensor, r: Tensor, norm: Tensor, running: Tensor) -> tuple["Best", Tensor, Tensor]:
        """The best so far; (batch,) who is lost and has to go back to it; who was misled and has to forget.

        A step that got lost has still shown something of F, and on a linear problem all of it is true. So it is
        remembered, as long as it stayed within the finite numbers and the memory still leads to better residuals.
        """
        better = norm < self.norm
        lost = running & ~(norm <= _LOST * self.norm)
        idle = torch.where(better, 0.0, self.idle + 1)
        misled = ~norm.isfinite() | (idle >= _GIVE_UP)
        best = Best(
            select(better, w, self.w),
            select(better, r, self.r),
            torch.where(better, norm, self.norm),
            torch.where(misled, 0.0, idle),
        )
        return best, lost, misled
