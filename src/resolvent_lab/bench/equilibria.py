"""Equilibrium layers z = f(z, x) in several implementations, and the function of row B6."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs


class Transformer(nn.Module):
    """Attention and an MLP, post-norm, with the input injected; z is (batch, tokens, size)."""

    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        z = self.norms[0](x + self.attention(z, z, z, need_weights=False)[0])
        image: Tensor = self.norms[1](z + self.mlp(z))
        return image


class EquilibriumLayer(nn.Module, ABC):
    """One layer z = f(z, x) with z of the shape of x. A subclass computes z. The first guess is zero.

    Arguments:
        f: called as f(z, x).
    """

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The equilibrium, or an approximation of it."""

    def trajectory(self, x: Tensor) -> rs.blocks.Trajectory:
        """The input and the output, as the states of theta layers are given."""
        return rs.blocks.Trajectory(torch.arange(2.0, device=x.device), torch.stack([x, self(x)]), ())


class Solved(EquilibriumLayer):
    """By `rs.Equilibrium` with the given options."""

    def __init__(self, f: nn.Module, **options: Any) -> None:
        super().__init__(f)
        self.layer = rs.Equilibrium(f, **options)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        assert isinstance(z, Tensor)
        return z


class Unrolled(EquilibriumLayer):
    """A fixed number of applications of f: the explicit network with shared weights, the reference."""

    steps = 5

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        for _ in range(self.steps):
            z = self.f(z, x)
        return z
