"""The networks of the table."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.bench.task import Task
from resolvent.experiments import lotka_volterra, regression


class Network(nn.Module):
    """Nothing but layers."""

    def __init__(self, layers: rs.ThetaBlock) -> None:
        super().__init__()
        self.layers = layers


def b1(theta: float, device: str) -> Task:
    """The sine, from the last state of five layers in the plane."""
    torch.manual_seed(0)
    model = Network(rs.ThetaBlock(rs.fields.MLP(2, 10, 3), theta, num_steps=5, horizon=5.0)).to(device)
    x = torch.linspace(-5, 5, 20, device=device)

    def loss(model: Any, batch: Any) -> Tensor:
        start, target = batch
        error: Tensor = model.layers(start)[:, 1] - target
        return error.square().mean()

    return Task("B1", "regression", theta, 1e-6, model, (regression.augment(x), x.sin()), loss)


def b2(theta: float, device: str) -> Task:
    """Predator and prey, from all states of fifty layers in the plane."""
    torch.manual_seed(0)
    field = rs.fields.MLP(2, 20, 4, activation=nn.ReLU())
    model = Network(rs.ThetaBlock(field, theta, lotka_volterra.LAYERS, lotka_volterra.HORIZON)).to(device)

    def loss(model: Any, batch: Any) -> Tensor:
        error: Tensor = model.layers.trajectory(batch[0][0]).states - batch[0]
        return error[1:].square().sum(-1).mean()

    return Task("B2", "Lotka-Volterra", theta, 1e-6, model, (lotka_volterra.orbits().float().to(device),), loss)


ROWS: dict[str, Callable[[float, str], Task]] = {"B1": b1, "B2": b2}
THETAS = (0.5, 1.0)
