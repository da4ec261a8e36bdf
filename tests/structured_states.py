"""States of several tensors for the tests: a multiscale state, and a (position, velocity) pair."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

import resolvent as rs

CHANNELS = 2
RESOLUTIONS = (4, 2, 1)


class Multiscale(nn.Module):
    """A contraction of images at three resolutions, each of which sees all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 * CHANNELS, CHANNELS, 1) for _ in RESOLUTIONS)
        for conv in self.convs:
            nn.init.uniform_(conv.weight, -0.15, 0.15)

    def forward(self, z: list[Tensor]) -> list[Tensor]:
        return [
            torch.tanh(conv(torch.cat([functional.interpolate(part, (size, size)) for part in z], 1)))
            for conv, size in zip(self.convs, RESOLUTIONS, strict=True)
        ]


def images(batch: int = 3) -> list[Tensor]:
    return [torch.randn(batch, CHANNELS, size, size) for size in RESOLUTIONS]


class Pair(NamedTuple):
    position: Tensor
    velocity: Tensor


class Pendulum(rs.fields.Field):
    """A pendulum with friction, for pairs."""

    rowwise = True
    autonomous = True

    def __init__(self) -> None:
        super().__init__()
        self.friction = nn.Parameter(torch.tensor(0.1))

    def forward(self, t: Any, y: Pair) -> Pair:  # type: ignore[override]
        return Pair(y.velocity, -y.position.sin() - self.friction * y.velocity)


class FlatPendulum(rs.fields.Field):
    """The same for one tensor (batch, 2 n)."""

    rowwise = True
    autonomous = True

    def __init__(self, pendulum: Pendulum) -> None:
        super().__init__()
        self.friction = pendulum.friction

    def forward(self, t: Any, y: Tensor) -> Tensor:
        position, velocity = y.chunk(2, 1)
        return torch.cat([velocity, -position.sin() - self.friction * velocity], 1)


def pair(batch: int = 5, size: int = 2) -> Pair:
    return Pair(torch.randn(batch, size), torch.randn(batch, size))


def joined(state: Any) -> Tensor:
    """All entries of a state, (batch, n)."""
    return torch.cat([part.flatten(1) for part in tree_leaves(state)], 1)


def rows(state: Any, which: slice) -> Any:
    return tree_map(lambda part: part[which], state)
