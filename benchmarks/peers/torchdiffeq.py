"""torchdiffeq, for orientation: it integrates y' = F(t, y) on the grid of the layers, which is another network.

The released version has no implicit one-step method. `implicit_adams` takes steps of the classical Runge-Kutta method
until it has a history, and then corrects a prediction by a few fixed-point iterations at most; it cannot be brought
down to the order of a theta layer. `dopri5` chooses its own steps, to the tolerance of the row. Neither solves the
equations of the other contenders, so that no residual is asked of them.
"""

from functools import partial
from itertools import product

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

import resolvent as rs
from resolvent.blocks.weights import frozen_weights
from resolvent_lab.bench.contender import TorchContender

SAME_EQUATIONS = False


class Integrated(nn.Module):
    """The flow of a field, at the ends of the layers."""

    def __init__(self, block, method, adjoint, tolerance):
        super().__init__()
        self.field = block.field
        self.grid = block.horizon * torch.linspace(0, 1, block.num_steps + 1)
        self.integrate = partial(odeint_adjoint if adjoint else odeint, method=method, rtol=tolerance, atol=tolerance)

    def trajectory(self, x):
        with frozen_weights(self.field) as field:
            return rs.blocks.Trajectory(self.grid, self.integrate(field, x, self.grid.to(x)), ())

    def forward(self, x):
        return self.trajectory(x).states[-1]


def candidates(task):
    """All settings by name, for the fields that are smooth in time."""
    if task.row not in ("B1", "B2"):
        return {}
    return {
        f"{method}{', adjoint' * adjoint}": partial(
            TorchContender,
            "torchdiffeq",
            task,
            partial(Integrated, method=method, adjoint=adjoint, tolerance=task.tolerance),
        )
        for method, adjoint in product(("implicit_adams", "dopri5"), (False, True))
    }
