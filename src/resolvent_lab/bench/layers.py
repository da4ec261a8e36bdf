"""Theta layers in other implementations: the explicit network, and what other libraries build on."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import resolvent as rs
from resolvent_lab.bench.equilibria import EquilibriumLayer, Solved, Unrolled


class Layers(nn.Module, ABC):
    """The layers of a block in another implementation. A subclass implements one layer.

    Weights are computed once per pass, as in the block.
    """

    def __init__(self, block: rs.ThetaBlock) -> None:
        super().__init__()
        self.field = block.field
        self.theta, self.h, self.num_steps = float(block.theta), float(block.step_size), block.num_steps
        self.plain = not any(parametrize.is_parametrized(module) for module in self.modules())

    @abstractmethod
    def layer(self, n: int, t: float, x: Tensor) -> Tensor:
        """The n-th layer, y = x + h F(t, (1 - theta) x + theta y)."""

    def forward(self, x: Tensor) -> Tensor:
        return self._states(x)[-1]

    def trajectory(self, x: Tensor) -> rs.blocks.Trajectory:
        times = self.h * torch.arange(self.num_steps + 1, device=x.device)
        return rs.blocks.Trajectory(times, torch.stack(self._states(x)), ())

    def _states(self, x: Tensor) -> list[Tensor]:
        # A compiler computes equal weights once by itself, and cannot trace the copy that holds frozen ones.
        if self.plain or torch.compiler.is_compiling():
            return self._steps(self, x)
        with rs.blocks.frozen_weights(self) as layers:
            return self._steps(layers, x)

    def _steps(self, layers: "Layers", x: Tensor) -> list[Tensor]:
        states = [x]
        for n in range(self.num_steps):
            t = (n + stage_fraction(self.theta)) * self.h
            states.append(layers.layer(n, t, states[-1]))
        return states


def stage_fraction(theta: float) -> float:
    """The time within its step, as a fraction, at which a layer evaluates the field.

    The fields of all tasks are constant in time within a step. At the end of a step the next piece of a piecewise field
    begins, so theta = 1 evaluates in the middle.
    """
    return theta if theta < 1 else 0.5


class Explicit(Layers):
    """The ordinary residual network, as a plain loop in PyTorch: the reference."""

    def __init__(self, block: rs.ThetaBlock) -> None:
        super().__init__(block)
        self.theta = 0.0

    def layer(self, n: int, t: float, x: Tensor) -> Tensor:
        value: Tensor = x + self.h * self.field(t, x)
        return value


def explicit(old: rs.ThetaBlock | EquilibriumLayer) -> nn.Module:
    """The explicit counterpart of a block, or of an equilibrium layer."""
    return Unrolled(old.f) if isinstance(old, EquilibriumLayer) else Explicit(old)


def remade(old: rs.ThetaBlock | EquilibriumLayer, **options: Any) -> nn.Module:
    """The same layers with other options."""
    if isinstance(old, EquilibriumLayer):
        return Solved(old.f, **options)
    return rs.ThetaBlock(old.field, **{"theta": old.theta, **options}, num_steps=old.num_steps, horizon=old.horizon)


def as_own_network(old: rs.ThetaBlock, rowwise: bool | None = None, **options: Any) -> rs.ThetaBlock:
    """The same layers around a network as a user writes it; that of an `rs.fields.MLP` becomes an `nn.Sequential`."""
    field = old.field
    if isinstance(field, rs.fields.MLP):
        *hidden, last = field.layers
        network: Any = nn.Sequential(*(part for layer in hidden for part in (layer, field.activation)), last)
    else:
        assert isinstance(field, rs.Autonomous)
        network = field.module
    return rs.ThetaBlock(rs.Autonomous(network, rowwise=rowwise), old.theta, old.num_steps, old.horizon, **options)
