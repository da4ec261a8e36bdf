"""Rows B7 to B10: networks of a user's own, given to `rs.Autonomous` as they are, with nothing declared.

They differ in depth, width, activation, seed and training, so that no number rests on one field.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.layers import remade
from resolvent_lab.bench.networks import Network, trained
from resolvent_lab.bench.task import Task

ACTIVATIONS = (nn.Tanh, nn.GELU, nn.ReLU, nn.SiLU)


class Gated(nn.Module):
    """A network with a `forward` of its own, whose Jacobian is not known in closed form."""

    def __init__(self, unknowns: int, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.value, self.gate, self.out = (
            nn.Linear(unknowns, width),
            nn.Linear(unknowns, width),
            nn.Linear(width, unknowns),
        )
        self.activation = activation

    def forward(self, y: Tensor) -> Tensor:
        value: Tensor = self.out(self.activation(self.value(y)) * torch.sigmoid(self.gate(y)))
        return value


class Joined(nn.Module):
    """A network with a `forward` of its own that joins and splits features."""

    def __init__(self, unknowns: int, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(2 * unknowns, 2 * width), nn.Linear(width, unknowns)
        self.activation = activation

    def forward(self, y: Tensor) -> Tensor:
        value, gate = self.first(torch.cat([y, y.sin()], dim=1)).chunk(2, dim=-1)
        found: Tensor = self.out(self.activation(value) * torch.softmax(gate, dim=-1))
        return found


@dataclass(frozen=True)
class Kind:
    """What one network differs in.

    Attributes:
        unknowns: of a sample.
        hidden: number of hidden layers; that of a network with a `forward` of its own is not counted.
        width: of the hidden layers.
        activation: its class.
        seed: of the weights.
        training: steps of Adam; 0 leaves the weights as they are drawn.
        own: the class of a network with a `forward` of its own; None takes an `nn.Sequential`.
    """

    unknowns: int
    hidden: int
    width: int
    activation: type[nn.Module]
    seed: int
    training: int = 0
    own: type[nn.Module] | None = None

    def build(self) -> nn.Module:
        torch.manual_seed(self.seed)
        if self.own is not None:
            return self.own(self.unknowns, self.width, self.activation())
        sizes = [self.unknowns, *[self.width] * self.hidden]
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), self.activation())]
        return nn.Sequential(*layers, nn.Linear(self.width, self.unknowns))

    def __str__(self) -> str:
        form = f"{self.hidden} hidden layers" if self.own is None else self.own.__name__.lower()
        return f"{form} of {self.width}, {self.activation.__name__}, seed {self.seed}"


def own_network(
    theta: float, device: str, row: str, title: str, kind: Kind, samples: int, layers: int, step: float
) -> Task:
    """Layers around one network: half of the entries of a state are inputs, the others begin at zero and shall become
    the sines of the inputs. A training, if any, is of these implicit layers, on 64 samples."""
    model = Network(rs.ThetaBlock(rs.Autonomous(kind.build()), theta, layers, layers * step)).to(device)
    inputs = 2 * torch.randn(max(samples, 64), kind.unknowns // 2, device=device)
    start, target = torch.cat([inputs, torch.zeros_like(inputs)], dim=1), inputs.sin()
    task = Task(row, title, theta, 1e-6, model, (start[:64], target[:64]), _sines, network=str(kind))
    return replace(trained(task, kind.training, remade), batch=(start[:samples], target[:samples]))


def _sines(model: Any, batch: Any) -> Tensor:
    start, target = batch
    return F.mse_loss(model(start)[:, target.shape[1] :], target)


Make = Callable[..., Task]


def many_kinds() -> tuple[Make, ...]:
    """B8: depths, widths, activations, seeds and training; in the plane, and with 16 unknowns."""
    found: list[Make] = []
    for (unknowns, layers, step, samples), training in product(((2, 5, 1.0, 20), (16, 4, 0.25, 64)), (0, 150)):
        depths = product((1, 3), ACTIVATIONS)
        kinds = [
            Kind(unknowns, hidden, (10, 40)[n % 2], activation, n, training)
            for n, (hidden, activation) in enumerate(depths)
        ]
        own = [
            Kind(unknowns, 0, 20, activation, n, training, form)
            for form in (Gated, Joined)
            for n, activation in enumerate(ACTIVATIONS[:2])
        ]
        drawn = f"{unknowns} unknowns, {'trained' if training else 'as drawn'}"
        found += _makes("B8", f"{drawn}, nn.Sequential", kinds, samples, layers, step)
        found += _makes("B8", f"{drawn}, a forward of its own", own, samples, layers, step)
    return tuple(found)


def batches() -> tuple[Make, ...]:
    """B9: five layers in the plane, for large batches."""
    kinds = [Kind(2, 3, 10, nn.GELU, 0, 150), Kind(2, 2, 20, nn.Tanh, 1), Kind(2, 3, 10, nn.ReLU, 2, 150)]
    return tuple(make for count in (512, 2048, 8192) for make in _makes("B9", f"{count} samples", kinds, count, 5, 1.0))


def unknowns() -> tuple[Make, ...]:
    """B10: 4 and 16 layers of 8 to 256 unknowns, as drawn and trained."""
    found: list[Make] = []
    groups = ((64, 0, 4), (256, 0, 4), (64, 150, 4), (64, 0, 16), (64, 150, 16))
    for (samples, training, layers), count in product(groups, (8, 16, 32, 64, 128, 256)):
        kinds = [
            Kind(count, 2, max(count, 16), activation, n, training) for n, activation in enumerate(ACTIVATIONS[:3])
        ]
        title = f"{count} unknowns, {samples} samples{', trained' if training else ''}{', 16 layers' * (layers == 16)}"
        found += _makes("B10", title, kinds, samples, layers, 1 / layers)
    return tuple(found)


def _makes(row: str, title: str, kinds: Sequence[Kind], samples: int, layers: int, step: float) -> list[Make]:
    return [
        partial(own_network, row=row, title=title, kind=kind, samples=samples, layers=layers, step=step)
        for kind in kinds
    ]


def own_convolutions(
    theta: float, device: str, tolerance: float = 1e-6, count: int = 64, channels: int = 16, size: int = 14
) -> Task:
    """B7: four blocks of one layer each, with two convolutions of its own in each layer."""
    torch.manual_seed(0)

    def field() -> nn.Module:
        convolutions = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
        return nn.Sequential(nn.ReLU(), convolutions[0], nn.ReLU(), convolutions[1])

    layers = [rs.ThetaBlock(rs.Autonomous(field()), theta, num_steps=1, horizon=1.0) for _ in range(4)]
    batch = tuple(torch.randn(count, channels, size, size, device=device) for _ in range(2))

    def loss(model: Any, batch: Any) -> Tensor:
        start, target = batch
        return F.mse_loss(model(start), target)

    return Task(
        "B7",
        f"own convolutions, {channels} channels",
        theta,
        tolerance,
        nn.Sequential(*layers).to(device),
        batch,
        loss,
    )
