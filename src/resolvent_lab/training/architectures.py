"""The networks of `resolvent train`: implicit residual networks, theta layers, differential equations, equilibria."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.training.facts import Facts
from resolvent_lab.training.network import Architecture, AtEquilibrium, Integrated, Network, Stack, Steps


@dataclass(frozen=True)
class ImplicitResNet(Architecture):
    """The residual network for images whose layers are theta layers, see `rs.models.implicit_resnet18`.

    Arguments:
        theta: of all layers; 0 is the explicit residual network.
        channels: of the first stage.
        normalization: "free", "bounded", "batch", "gradient" or "bounded-gradient".
        layers: the number of layers per stage.
        step_size: of each layer.
        on_failure: "raise" or "mask" for samples whose solve fails.
    """

    theta: float = 0.5
    channels: int = 8
    normalization: Literal["free", "bounded", "batch", "gradient", "bounded-gradient"] = "free"
    layers: int = 2
    step_size: float = 1.0
    on_failure: Literal["raise", "mask"] = "raise"

    def network(self, facts: Facts) -> Network:
        _expect(facts, ("classification", "regression"), "ImplicitResNet")
        if len(facts.shape) != 3:
            raise ValueError(
                f"ImplicitResNet takes images (channels, height, width), got inputs of shape {facts.shape}: take "
                "ThetaMLP."
            )
        return Stack(
            rs.models.implicit_resnet18(
                self.theta,
                self.channels,
                facts.outputs,
                facts.shape,
                normalization=self.normalization,
                layers=self.layers,
                step_size=self.step_size,
                on_failure=self.on_failure,
            )
        )


@dataclass(frozen=True)
class ThetaMLP(Architecture):
    """Theta layers around a perceptron, y = x + h F((1 - theta) x + theta y), between two linear maps.

    For a series there are no linear maps: the layers are steps in time from each state to the next.

    Arguments:
        theta: of the layers; 0 is the explicit residual network.
        layers: their number; for a series the number of steps between two times.
        dim: size of the states; not for series.
        width: size of the hidden layers of F.
        depth: number of square matrices in F.
        horizon: the length of the time interval of all layers; not for series.
        shared: whether all layers share their weights; not for series, whose layers do.
        bound: an upper limit for the Lipschitz constant of F; None sets none.
        dropout: the fraction of the hidden units of F that are dropped in training, the same ones throughout a pass.
        on_failure: "raise" or "mask" for samples whose solve fails.
    """

    theta: float = 0.5
    layers: int = 5
    dim: int = 16
    width: int = 32
    depth: int = 1
    horizon: float = 1.0
    shared: bool = False
    bound: float | None = None
    dropout: float = 0.0
    on_failure: Literal["raise", "mask"] = "raise"

    def __post_init__(self) -> None:
        _positive(layers=self.layers, dim=self.dim, width=self.width)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}.")
        if self.dropout and self.bound is not None:
            raise ValueError("a field with dropout has no bound: leave one of them out.")

    def network(self, facts: Facts) -> Network:
        if facts.task == "series":
            field = self._field(facts.shape[0])
            return Steps(rs.ThetaBlock(field, self.theta, self.layers, 1.0, on_failure=self.on_failure))
        fields = [self._field(self.dim) for _ in range(1 if self.shared else self.layers)]
        field = fields[0] if self.shared else rs.fields.Piecewise(fields, self.horizon)
        return Stack(
            nn.Sequential(
                nn.Flatten(),
                nn.Linear(facts.size, self.dim),
                rs.ThetaBlock(field, self.theta, self.layers, self.horizon, on_failure=self.on_failure),
                nn.Linear(self.dim, facts.outputs),
            )
        )

    def _field(self, dim: int) -> rs.fields.Field:
        if not self.dropout:
            return rs.fields.MLP(dim, self.width, self.depth, bound=self.bound)
        return _with_dropout(dim, self.width, self.depth, self.dropout)


@dataclass(frozen=True)
class NeuralODE(Architecture):
    """A perceptron as the right-hand side of a differential equation, y' = F(y), which `rs.odeint` integrates.

    For a series the states are those of the series. Otherwise a linear map makes the state at t = 0 of the inputs, and
    another the outputs of the state at t = 1.

    Arguments:
        dim: size of the states; not for series.
        width: size of the hidden layers of F.
        depth: number of square matrices in F.
        rtol: relative tolerance of the integration.
        checkpoint: whether to recompute the steps in the backward pass, which takes less memory.
    """

    dim: int = 16
    width: int = 32
    depth: int = 1
    rtol: float = 1e-3
    checkpoint: bool = False

    def __post_init__(self) -> None:
        _positive(dim=self.dim, width=self.width, rtol=self.rtol)

    def network(self, facts: Facts) -> Network:
        series = facts.task == "series"
        dim = facts.shape[0] if series else self.dim
        before = nn.Identity() if series else nn.Sequential(nn.Flatten(), nn.Linear(facts.size, dim))
        after = nn.Identity() if series else nn.Linear(dim, facts.outputs)
        field = rs.fields.MLP(dim, self.width, self.depth)
        return Integrated(field, before, after, self.rtol, series, self.checkpoint)


@dataclass(frozen=True)
class EquilibriumModel(Architecture):
    """A layer whose state is an equilibrium of the inputs, z = f(z, x), and a linear map of it.

    Arguments:
        width: size of the state.
        kind: "tanh": f = tanh(W z + U x + c). "monotone": `rs.fields.Monotone`, whose equilibrium exists and is unique
            for all weights.
        dropout: the fraction of the entries of f that are dropped in training; for "tanh".
        warm: whether each solve starts from the last equilibrium of its sample. It changes the cost, and the result
            within the tolerance.
        on_failure: "raise" or "mask" for samples whose solve fails.
    """

    width: int = 32
    kind: Literal["tanh", "monotone"] = "tanh"
    dropout: float = 0.0
    warm: bool = False
    on_failure: Literal["raise", "mask"] = "raise"

    def __post_init__(self) -> None:
        _positive(width=self.width)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}.")
        if self.dropout and self.kind != "tanh":
            raise ValueError("only an equilibrium of kind tanh takes dropout.")

    def network(self, facts: Facts) -> Network:
        _expect(facts, ("classification", "regression"), "EquilibriumModel")
        f: nn.Module
        if self.kind == "monotone":
            f = rs.fields.Monotone(self.width, nn.Linear(facts.size, self.width))
        else:
            f = _Tanh(facts.size, self.width, self.dropout)
            f = rs.blocks.FrozenRandomness(f) if self.dropout else f
        width = self.width
        layer = rs.Equilibrium(
            f,
            lambda x: x.new_zeros(len(x), width),
            on_failure=self.on_failure,
            warm=facts.samples if self.warm else None,
        )
        return AtEquilibrium(layer, nn.Linear(width, facts.outputs))


class _Tanh(nn.Module):
    """f(z, x) = tanh(W z + U x + c)."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.state, self.input = nn.Linear(width, width, bias=False), nn.Linear(inputs, width)
        with torch.no_grad():
            self.state.weight.mul_(0.5)  # contracts at the start
        self.dropout = nn.Dropout(dropout)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        value: Tensor = self.dropout(torch.tanh(self.state(z) + self.input(x)))
        return value


def _with_dropout(dim: int, width: int, depth: int, dropout: float) -> rs.fields.Field:
    sizes = [dim, *[width] * (depth + 1)]
    hidden = [part for n, m in pairwise(sizes) for part in (nn.Linear(n, m), nn.GELU(), nn.Dropout(dropout))]
    return rs.Autonomous(rs.blocks.FrozenRandomness(nn.Sequential(*hidden, nn.Linear(width, dim, bias=False))))


def _expect(facts: Facts, tasks: tuple[str, ...], name: str) -> None:
    if facts.task not in tasks:
        raise ValueError(f"{name} is for {' and '.join(tasks)}, got {facts.task}: take ThetaMLP or NeuralODE.")


def _positive(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}.")
