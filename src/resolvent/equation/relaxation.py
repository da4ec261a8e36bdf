"""Relaxation of the fixed point: how far each sample goes along its steps, measured in the first one."""

import torch
from torch import Tensor

from resolvent.equation.norms import dot, per_sample

# A sample may be relaxed if the first step leaves more of its residual than this,
_SLOW = 0.4
# if a relaxed step is much shorter, but not by a single stiff direction,
_SHORTEST, _LONGEST = 0.05, 0.8
# and if it leaves less than this part of what the plain step has left.
_GAIN = 0.7


def relaxation(start: Tensor, w: Tensor, image: Tensor, ratio: Tensor) -> Tensor | None:
    """alpha in w <- w + alpha f(w), (batch,), 1 for samples that are better without; None if all of them are.

    f = g(w) - w is the residual of the fixed point. A field that decays, F(y) = g(y) - k y, has slopes around -k: a
    plain step goes too far by a factor of 1 + tau k, and contracts slowly or not at all. The mean slope along the first
    step, from `start` to w, is that of <f0, f1 - f0> / <f0, f0>, so that

        alpha = <f0, f0> / <f0, f0 - f1>

    undoes it. For a slope of -k alone this is 1 / (1 + tau k), as if -k had been declared as the linear part.

    Arguments:
        start: the first guess, (batch, *shape).
        w: the iterate after one plain step.
        image: that after two.
        ratio: (batch,), of the residual after the first step to that before.
    """
    slow = ratio > _SLOW
    if not bool(slow.any()):
        return None
    first, second = w - start, image - w
    before, after, along = dot(first, first), dot(second, second), dot(first, second)
    alpha = before / (before - along)
    # The squared residual after a relaxed step, if F is linear.
    left = (1 - alpha).square() * before + 2 * alpha * (1 - alpha) * along + alpha.square() * after
    chosen = slow & (alpha > _SHORTEST) & (alpha < _LONGEST) & (left < _GAIN**2 * after)
    return torch.where(chosen, alpha, 1.0) if bool(chosen.any()) else None


def relaxed_twice(start: Tensor, w: Tensor, image: Tensor, alpha: Tensor) -> Tensor:
    """Where two relaxed steps lead, if F is linear; the arguments are those of `relaxation`."""
    alpha = per_sample(alpha, w)
    residual = torch.lerp(w - start, image - w, alpha)
    return torch.addcmul(torch.lerp(start, w, alpha), alpha, residual)
