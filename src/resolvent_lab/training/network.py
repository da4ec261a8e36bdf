"""`Network` and `Architecture`: what `resolvent train` trains, and the settings that make one."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.training.facts import Facts
from resolvent_lab.training.penalties import Penalties, added


class Pass(NamedTuple):
    """The result of one pass.

    Attributes:
        outputs: (batch, outputs), or (batch, times, d) for series.
        penalties: 0-d tensors by name.
        steps: (batch,), of an adaptive integration; None if nothing was integrated.
    """

    outputs: Tensor
    penalties: dict[str, Tensor]
    steps: Tensor | None = None


class Network(nn.Module, ABC):
    """A network in training. Inputs are standardized already."""

    @abstractmethod
    def forward(self, inputs: Tensor, times: Tensor, numbers: Tensor, penalties: Penalties) -> Pass:
        """One pass.

        Arguments:
            inputs: (batch, *shape).
            times: (batch, times) for series, else (batch, 0).
            numbers: (batch,), of the samples among the training samples. They count in training mode only.
            penalties: their weights.
        """

    @property
    def classifier(self) -> nn.Sequential | None:
        """The network as layers that `rs.analysis.certified_radius` may know; None if it is no stack of layers."""
        return None


class Architecture(ABC):
    """The settings of a network. The shapes come from the data."""

    @abstractmethod
    def network(self, facts: Facts) -> Network:
        """A network with new weights for such data."""


class Stack(Network):
    """Layers one after the other, among them theta blocks."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    @property
    def classifier(self) -> nn.Sequential:
        return self.layers

    def forward(self, inputs: Tensor, times: Tensor, numbers: Tensor, penalties: Penalties) -> Pass:
        if penalties == Penalties() or not self.training:
            return Pass(self.layers(inputs), {})
        state, terms = inputs, []
        for layer in self.layers:
            if isinstance(layer, rs.ThetaBlock):
                trajectory = layer.trajectory(state)
                terms.append(penalties.of_block(layer, trajectory))
                state = trajectory.states[-1]
            else:
                state = layer(state)
        return Pass(state, added(terms))


class Steps(Network):
    """A theta block between each two times of a series."""

    def __init__(self, block: rs.ThetaBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, inputs: Tensor, times: Tensor, numbers: Tensor, penalties: Penalties) -> Pass:
        state, states, terms = inputs, [inputs], []
        for start, end in zip(times.T[:-1], times.T[1:], strict=True):
            trajectory = self.block.trajectory(state, start, end - start)
            if self.training:
                terms.append(penalties.of_block(self.block, trajectory))
            state = trajectory.states[-1]
            states.append(state)
        return Pass(torch.stack(states, dim=1), added(terms))


class Integrated(Network):
    """A field that `rs.odeint` integrates, between two maps of the states."""

    def __init__(
        self, field: nn.Module, before: nn.Module, after: nn.Module, rtol: float, series: bool, checkpoint: bool
    ) -> None:
        super().__init__()
        self.field, self.before, self.after = field, before, after
        self.rtol, self.series = rtol, series
        self.memory = "checkpoint" if checkpoint else "store"

    def forward(self, inputs: Tensor, times: Tensor, numbers: Tensor, penalties: Penalties) -> Pass:
        start = self.before(inputs)
        grid = times.T if self.series else start.new_tensor([0.0, 1.0])
        found = rs.odeint(self.field, start, grid, rtol=self.rtol, memory=self.memory)
        states = found.states.transpose(0, 1) if self.series else found.states[-1]
        return Pass(self.after(states), {}, found.accepted + found.rejected)


class AtEquilibrium(Network):
    """An equilibrium layer and a linear map."""

    def __init__(self, layer: rs.Equilibrium, head: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, head

    def forward(self, inputs: Tensor, times: Tensor, numbers: Tensor, penalties: Penalties) -> Pass:
        x = inputs.flatten(1)
        warm = numbers if self.training and self.layer.warm is not None else None
        z = self.layer(x, samples=warm)
        terms = penalties.of_equilibrium(self.layer, z, x) if self.training else {}
        return Pass(self.head(z), terms)
