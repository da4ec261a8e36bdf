"""The paper's first three problems: a sine, a stiff equation, and predator and prey."""

import math
from typing import Any

import torch
from torch import Tensor

RATE, HORIZON = 20.0, 2.0
"""Of the stiff equation z' = -20 (z - cos min(t, 2)): its rate, and the time after which the forcing is constant."""


def stiff_solution(t: Tensor, t0: Tensor, z0: Tensor) -> Tensor:
    """The exact solution of the stiff equation at t with z(t0) = z0, for t0 <= 2."""

    def forced(s: Tensor) -> Tensor:
        return (RATE**2 * s.cos() + RATE * s.sin()) / (RATE**2 + 1)

    within = t.clamp(max=HORIZON)
    z = forced(within) + (z0 - forced(t0)) * torch.exp(-RATE * (within - t0))
    rest = math.cos(HORIZON)
    return rest + (z - rest) * torch.exp(-RATE * (t - within))


def predator_and_prey(t: Any, z: Tensor) -> Tensor:
    """z1' = 2/3 z1 - 4/3 z1 z2, z2' = z1 z2 - z2."""
    prey, predator = z.unbind(-1)
    return torch.stack([prey * (2 / 3 - 4 / 3 * predator), predator * (prey - 1)], dim=-1)
