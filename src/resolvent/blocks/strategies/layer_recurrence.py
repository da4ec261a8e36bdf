"""The linear equations of a group of theta layers, solved along the layers, in a form that `torch.compile` can fuse.

With A_n = I - theta h J_n, the matrix of one layer, and its inverse X_n, changes of the states y_n and of the explicit
part q_n of h F(w_n) satisfy

    dy_n = T_n dy_{n-1} + X_n dq_n,      T_n = I + h J_n X_n = I + (X_n - I) / theta.

So no matrix of the whole group is made: the numbers of a layer are those of X_n.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.equation.matrix import inverse, times


def inverses(matrices: Tensor) -> Tensor:
    """Of (batch, layers, k, k). Not finite where a matrix is singular."""
    found, exist = inverse(matrices)
    return torch.where(exist[..., None, None], found, torch.nan)


def regular(matrices: Tensor, found: Tensor) -> Tensor:
    """0-d, whether these inverses have at least half of their digits correct: |A X - I| is at most sqrt(eps)."""
    k = matrices.shape[-1]
    identity = torch.eye(k, dtype=found.dtype, device=found.device)
    defect = products(matrices, found) - identity
    return (defect.abs() <= torch.finfo(found.dtype).eps ** 0.5).all()


def products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for small matrices. As a sum, the compiler fuses it with its neighbours."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def transfers(found: Tensor, theta: float) -> Tensor:
    """T of each layer from its inverse X."""
    if theta == 1:
        return found
    identity = torch.eye(found.shape[-1], dtype=found.dtype, device=found.device)
    return identity + (found - identity) / theta


def newton_direction(found: Tensor, r: Tensor, theta: float) -> Tensor:
    """(I - h M F')^{-1} r for r (batch, layers, k).

    The changes d_n of the stages and e_n of the states are

        d_n = X_n (r_n + e_{n-1}),      e_n = T_n e_{n-1} + (T_n - I) r_n.

    The second is a recurrence, which is doubled: after step i every state is known from the one 2^i layers before, so
    that it takes few operations. Rounding in the products of the T_n may make the direction worse, but not the
    solution: its defect is evaluated.
    """
    T = transfers(found, theta)
    e, layers, shift = times(T, r) - r, r.shape[1], 1
    while shift < layers:
        e = e + times(T, _later(e, shift))
        if 2 * shift < layers:
            T = products(T, _later(T, shift))
        shift *= 2
    return times(found, r + _later(e, 1))


def _later(rows: Tensor, shift: int) -> Tensor:
    """The rows (batch, layers, ...) moved by `shift` layers; zeros come first."""
    return F.pad(rows[:, :-shift], (*(0, 0) * (rows.dim() - 2), shift, 0))


class Linearized(torch.autograd.Function):
    """The states of a solved group. Their derivative is that of the recurrence."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, x: Tensor, q: Tensor, found: Tensor, theta: float) -> Tensor:
        """`states`, as a function of x (batch, k) and q = h F(w) (batch, layers, k)."""
        ctx.save_for_backward(found)
        ctx.theta = theta
        return states.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (found,) = ctx.saved_tensors
        backwards = transfers(found, ctx.theta).mT
        # Layer by layer: here rounding in products of the matrices would be an error of the gradient.
        total, totals = g[:, -1], []
        for n in reversed(range(g.shape[1])):
            totals.append(total)
            total = times(backwards[:, n], total)
            total = total if n == 0 else total + g[:, n - 1]
        weights = torch.stack(totals[::-1], dim=1)
        return None, total, times(found.mT, weights), None, None
