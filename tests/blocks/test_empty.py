"""An empty batch goes through a block, forward and backward; a state without unknowns is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from seeding import shifted

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "one layer": {"num_steps": 1},
    "stages": {"theta": 1.0},
    "below one half": {"theta": 0.3},
    "sequential": {"mode": "sequential"},
    "checkpoint": {"memory": "checkpoint"},
    "mask": {"on_failure": "mask"},
    "learned": {"theta": 0.4, "learn_theta": True},
}


class Own(nn.Module):
    """A module that no closed form is known for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, y: Tensor) -> Tensor:
        return torch.tanh(self.linear(y)) * torch.cos(y)


def chain(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, width))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("make", [chain, Own], ids=["chain", "own"])
@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("name", SETTINGS)
def test_an_empty_batch(name: str, width: int, make: Any, training: bool) -> None:
    torch.manual_seed(shifted(0))
    block = rs.ThetaBlock(rs.Autonomous(make(width)), **SETTINGS[name]).train(training)
    x = torch.zeros(0, width, requires_grad=True)
    with torch.no_grad():
        assert block(x).shape == (0, width)
    y = block(x)
    assert y.shape == (0, width)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, width)
    for weight in block.parameters():
        assert weight.grad is None or not weight.grad.any()


@pytest.mark.parametrize("width", [2, 8])
def test_its_trajectory(width: int) -> None:
    x = torch.zeros(0, width, requires_grad=True)
    states = rs.ThetaBlock(rs.Autonomous(chain(width))).trajectory(x, t0=torch.zeros(0)).states
    assert states.shape == (6, 0, width)
    states.sum().backward()


@pytest.mark.parametrize("shape", [(3, 0), (3, 2, 0)])
@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_a_state_without_unknowns(mode: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"x must have at least one unknown per sample, got shape \({shape[0]}, "):
        rs.ThetaBlock(lambda t, y: -y, mode=mode)(torch.zeros(shape))
    explicit = rs.ThetaBlock(lambda t, y: -y, theta=0.0)
    assert explicit(torch.zeros(shape)).shape == shape
