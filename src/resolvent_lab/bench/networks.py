"""Rows B1 to B4 and B6: the networks of the paper's examples, wide convolutions, and an equilibrium."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.equilibria import EquilibriumLayer, Solved, Transformer
from resolvent_lab.bench.layers import Explicit
from resolvent_lab.bench.task import Convert, Task, with_layers

SCALE = 0.2
"""The scale S of the bounded fields. Training starts at 0.1; trained layers have means of 0.11 to 0.34."""


class Network(nn.Module):
    """A network of implicit layers only."""

    def __init__(self, layers: rs.ThetaBlock | EquilibriumLayer) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layers(x)
        return states


class States(nn.Module):
    """The states after all layers of a block, with the first, as outputs."""

    def __init__(self, layers: rs.ThetaBlock) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layers.trajectory(x).states
        return states


def trained(task: Task, steps: int, convert: Convert = Explicit) -> Task:
    """The task after some steps of Adam with these layers. Equations with untrained fields would be too easy."""
    model = with_layers(task.model, convert)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        adam.zero_grad()
        task.loss(model, task.batch).backward()
        adam.step()
    task.model.load_state_dict(model.state_dict())
    return task


def regression(theta: float, device: str, training: int = 300) -> Task:
    """B1: regression of a sine. Five layers in the plane, loss on the last state."""
    torch.manual_seed(0)
    model = Network(rs.ThetaBlock(rs.fields.MLP(2, 10, 3), theta, num_steps=5, horizon=5.0)).to(device)
    x = torch.linspace(-5, 5, 20, device=device)

    def loss(model: Any, batch: Any) -> Tensor:
        start, target = batch
        return F.mse_loss(model(start)[:, 1], target)

    batch = (torch.stack([x, torch.zeros_like(x)], dim=1), x.sin())
    return trained(Task("B1", "regression", theta, 1e-6, model, batch, loss), training)


def lotka_volterra(theta: float, device: str, training: int = 150) -> Task:
    """B2: predator and prey. Fifty layers in the plane, loss on all states."""
    torch.manual_seed(0)
    model = States(rs.ThetaBlock(rs.fields.MLP(2, 20, 4, activation=nn.ReLU()), theta, 50, 10.0)).to(device)

    def truth(t: Any, z: Tensor) -> Tensor:
        prey, predator = z.unbind(-1)
        return torch.stack([prey * (2 / 3 - 4 / 3 * predator), predator * (prey - 1)], dim=-1)

    def loss(model: Any, batch: Any) -> Tensor:
        (orbits,) = batch
        error: Tensor = model(orbits[0]) - orbits
        return error[1:].square().sum(-1).mean()

    start = torch.tensor([[1.0, predator] for predator in (1.0, 1.2, 1.4, 1.6, 1.8)])
    fine = rs.Block(truth, rs.schemes.RungeKutta(rs.schemes.tableaux.RK4), num_steps=500, horizon=10.0)
    batch = (fine.trajectory(start).states[::10].to(device),)
    return trained(Task("B2", "Lotka-Volterra", theta, 1e-6, model, batch, loss), training)


def resnet(theta: float, device: str, count: int = 128) -> Task:
    """B3: the residual network for MNIST, on random images."""
    torch.manual_seed(0)
    model = rs.models.implicit_resnet18(theta, channels=8, normalization="bounded", scale=SCALE, stem_gain=1.0)
    model = model.to(device)
    batch = (torch.rand(count, 1, 28, 28, device=device), torch.randint(10, (count,), device=device))

    def loss(model: Any, batch: Any) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    return Task("B3", "ResNet-18 for MNIST", theta, 1e-3, model, batch, loss)


def convolutions(
    theta: float, device: str, count: int = 256, channels: int = 64, size: int = 32, autocast: bool = False
) -> Task:
    """B4: four layers that share a field of two wide convolutions."""
    torch.manual_seed(0)
    field = rs.fields.Bounded(rs.fields.Conv(channels, size=(size, size), bound=1.0), -3.0, 1.0, scale=SCALE)
    model = Network(rs.ThetaBlock(field, theta, num_steps=4, horizon=4.0)).to(device)
    batch = tuple(torch.randn(count, channels, size, size, device=device) for _ in range(2))

    def loss(model: Any, batch: Any) -> Tensor:
        start, target = batch
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=autocast):
            return F.mse_loss(model(start).to(target.dtype), target)

    title = f"{channels} channels{', bfloat16' if autocast else ''}"
    return Task("B4", title, theta, 5e-3 if autocast else 1e-3, model, batch, loss)


def convolutions_bfloat16(theta: float, device: str, **options: Any) -> Task:
    """B4 with the field evaluated in bfloat16."""
    return convolutions(theta, device, autocast=True, **options)


def sequence(device: str, count: int = 32, tokens: int = 20, size: int = 32) -> Task:
    """B6: a transformer block as an equilibrium layer."""
    torch.manual_seed(0)
    model = Network(Solved(Transformer(size))).to(device)
    batch = tuple(torch.randn(count, tokens, size, device=device) for _ in range(2))

    def loss(model: Any, batch: Any) -> Tensor:
        x, target = batch
        return F.mse_loss(model(x), target)

    return Task("B6", "equilibrium of a transformer block", None, 1e-4, model, batch, loss)
