"""`Monotone`: a function whose equilibrium exists and is unique, whatever its weights are."""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class Monotone(nn.Module):
    """The function of a monotone operator equilibrium network, for `rs.Equilibrium`:

        f(z, x) = max(0, W z + inject(x)),      W = (1 - m) I - A^T A + B - B^T,      m > 0.

    The symmetric part of I - W is at least m, for all weights A and B. So z = f(z, x) has exactly one solution for
    every x, also where f does not contract, and it depends on inject(x) with a Lipschitz constant of at most 1 / m. W
    is a parametrized weight: a pass computes it once.

        layer = rs.Equilibrium(rs.fields.Monotone(64, inject=nn.Linear(10, 64)), z0=lambda x: x.new_zeros(len(x), 64))

    All solvers apply. The splitting methods `rs.solvers.ForwardBackward` and `rs.solvers.PeacemanRachford` converge for
    all weights.

    Arguments:
        size: the number of entries of z, which is (batch, size).
        inject: maps the input to (batch, size), usually with a bias, such as nn.Linear(features, size).
        margin: m.

    Reference: Winston & Kolter, Monotone operator equilibrium networks, 2020.
    """

    def __init__(self, size: int, inject: nn.Module, margin: float = 0.1) -> None:
        super().__init__()
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"size must be a whole number, 1 or more, got {size!r}.")
        if not isinstance(inject, nn.Module):
            raise ValueError(f"inject must be a module such as nn.Linear(features, {size}), got {inject!r}.")
        if not isinstance(margin, int | float) or not (math.isfinite(margin) and margin > 0):
            raise ValueError(f"margin must be a positive number, got {margin!r}.")
        self.margin = float(margin)
        self.recur = nn.Linear(size, size, bias=False)
        self.inject = inject
        parametrize.register_parametrization(self.recur, "weight", _MonotoneWeight(self.margin))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.relu(self.recur(z) + self.inject(x))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """W, (size, size), and inject(x), (batch, size), for the splitting methods."""
        return self.recur.weight, self.inject(x)

    def extra_repr(self) -> str:
        return f"margin={self.margin:g}"


class _MonotoneWeight(nn.Module):
    """Maps A and B to W."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, A: Tensor, B: Tensor) -> Tensor:
        identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
        return (1 - self.margin) * identity - A.mT @ A + B - B.mT

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weights to start from: those of an ordinary layer for both."""
        return weight, weight.flip(0)
