"""Row B12: fields of a user's own that decay, F(y) = g(y) - y with a normalised g, in layers of length one.

Plain steps of the fixed point do not contract there. Nothing is declared, so the decay is not known to the solver.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.own import Make
from resolvent_lab.bench.task import Task

LAYERS, STEP, TOLERANCE = 2, 1.0, 1e-6


class Decaying(nn.Module):
    """F(y) = g(y) - y."""

    def __init__(self, g: nn.Module) -> None:
        super().__init__()
        self.g = g

    def forward(self, y: Tensor) -> Tensor:
        image: Tensor = self.g(y)
        return image - y


class Attention(nn.Module):
    """A pre-norm transformer block without its residual connections, for states (batch, tokens, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, y: Tensor) -> Tensor:
        tokens = self.norms[0](y)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        image: Tensor = mixed + self.wide(self.norms[1](y + mixed))
        return image


def perceptron(unknowns: int) -> nn.Module:
    width = 2 * unknowns
    return nn.Sequential(nn.LayerNorm(unknowns), nn.Linear(unknowns, width), nn.GELU(), nn.Linear(width, unknowns))


def convolutions(channels: int) -> nn.Module:
    parts = [(nn.GroupNorm(4, channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(2)]
    return nn.Sequential(*(layer for part in parts for layer in part))


def _task(theta: float, device: str, title: str, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Task:
    """Own weights in each layer."""
    torch.manual_seed(0)
    blocks = [rs.ThetaBlock(rs.Autonomous(Decaying(make())), theta, 1, STEP) for _ in range(LAYERS)]
    batch = tuple(torch.randn(*shape, device=device) for _ in range(2))

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        start, target = batch
        return F.mse_loss(model(start), target)

    name = f"{title}, {' x '.join(map(str, shape))}"
    return Task("B12", title, theta, TOLERANCE, nn.Sequential(*blocks).to(device), batch, loss, network=name)


def decaying() -> tuple[Make, ...]:
    """B12: perceptrons, convolutions and attention."""
    found: list[Make] = []

    def add(title: str, make: Callable[[], nn.Module], *shape: int) -> None:
        found.append(partial(_task, title=f"decaying {title}", make=make, shape=shape))

    for unknowns in (8, 32, 64, 256):
        add("perceptrons", partial(perceptron, unknowns), 64, unknowns)
    for channels in (4, 16):
        add("convolutions", partial(convolutions, channels), 16, channels, 14, 14)
    for width in (16, 32):
        add("attention", partial(Attention, width), 16, 16, width)
    return tuple(found)
