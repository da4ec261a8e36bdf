"""Acceleration of the fixed point by its last two secants."""

import torch
from torch import Tensor

from resolvent.equation.norms import flat, per_sample

# Added to the diagonal of the normal equations, in units of rounding and of their trace.
_REGULARIZATION = 10.0


class Secants:
    """The last two changes of the residual f = g(w) - w of a fixed point, and of the image g(w), of every sample.

    The next iterate is g - dG gamma with the gamma that minimises |f - dF gamma|, where the columns of dF and dG are
    these changes. This is Anderson's method with a window of two, in closed form and without its safeguards.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor] | None = None
        self._change: tuple[Tensor, Tensor] | None = None

    def next(self, f: Tensor, g: Tensor) -> Tensor:
        """The next iterate, from the residual f and the image g at the last one."""
        last, before = self._last, self._change
        self._last = f, g
        if last is None:
            return g
        df, dg = f - last[0], g - last[1]
        self._change = df, dg
        small = _REGULARIZATION * torch.finfo(f.dtype).eps
        if before is None:
            columns = torch.stack([flat(df), flat(f)], 1)
            square, _, product, _ = (columns @ columns.mT).flatten(1).unbind(1)
            gamma = (product / (square * (1 + small))).nan_to_num(0.0, 0.0, 0.0)
            return torch.addcmul(g, per_sample(gamma, g), dg, value=-1)
        columns = torch.stack([flat(df), flat(before[0]), flat(f)], 1)
        a, b, p, _, c, q, *_ = (columns @ columns.mT).flatten(1).unbind(1)
        shift = small * (a + c)
        a, c = a + shift, c + shift
        determinant = a * c - b * b
        first = ((p * c - q * b) / determinant).nan_to_num(0.0, 0.0, 0.0)
        second = ((q * a - p * b) / determinant).nan_to_num(0.0, 0.0, 0.0)
        moved = torch.addcmul(g, per_sample(first, g), dg, value=-1)
        return torch.addcmul(moved, per_sample(second, g), before[1], value=-1)
