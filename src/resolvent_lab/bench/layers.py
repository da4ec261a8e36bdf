"""Theta layers in other implementations, and the contenders of this library."""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.equilibria import EquilibriumLayer, Solved, Unrolled
from resolvent_lab.bench.task import Convert, Task


class Layers(nn.Module, ABC):
    """The layers of a block in another implementation. A subclass implements one layer.

    Weights are computed once per pass, as in the block.
    """

    def __init__(self, block: rs.ThetaBlock) -> None:
        super().__init__()
        self.field = block.field
        self.theta, self.h, self.num_steps = float(block.theta), float(block.step_size), block.num_steps

    @abstractmethod
    def layer(self, n: int, t: float, x: Tensor) -> Tensor:
        """The n-th layer, y = x + h F(t, (1 - theta) x + theta y)."""

    def forward(self, x: Tensor) -> Tensor:
        return self._states(x)[-1]

    def trajectory(self, x: Tensor) -> rs.blocks.Trajectory:
        times = self.h * torch.arange(self.num_steps + 1, device=x.device)
        return rs.blocks.Trajectory(times, torch.stack(self._states(x)), ())

    def _states(self, x: Tensor) -> list[Tensor]:
        states = [x]
        with rs.blocks.frozen_weights(self) as layers:
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


def remade(old: rs.ThetaBlock | EquilibriumLayer, **options: Any) -> nn.Module:
    """The same layers with other options."""
    if isinstance(old, EquilibriumLayer):
        return Solved(old.f, **options)
    return rs.ThetaBlock(old.field, old.theta, old.num_steps, old.horizon, **options)


def unrolled(old: EquilibriumLayer) -> Unrolled:
    """The explicit counterpart of an equilibrium layer."""
    return Unrolled(old.f)


def ours(task: Task) -> dict[str, Convert]:
    """The contenders of this library for a task, by name. The first is the reference."""
    plain = partial(remade, stopping=rs.Stopping(rtol=task.tolerance, atol=0.0))
    if task.theta is None:
        iterated = partial(plain, solver=rs.Picard(), adjoint=rs.ImplicitAdjoint(rs.Neumann()))
        return {"explicit": unrolled, "resolvent": plain, "resolvent, Picard and Neumann": iterated}
    offers: dict[str, Convert] = {"explicit": Explicit, "resolvent": plain}
    if task.row in ("B1", "B2"):
        offers["resolvent, compiled"] = partial(plain, mode="compiled")
        offers["resolvent, layer by layer"] = partial(plain, mode="sequential")
    else:
        offers["resolvent, checkpoint"] = partial(plain, memory="checkpoint")
    return offers
