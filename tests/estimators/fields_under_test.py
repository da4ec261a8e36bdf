"""Fields on which every estimator is tested, and their Jacobians by another way."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from resolvent.fields import MLP, Bounded, Conv, Field, GradientFlow, Hamiltonian, Piecewise

FIELDS: dict[str, Callable[[], Field]] = {
    "mlp": lambda: MLP(4, 6, 1),
    "conv": lambda: Conv(2, 2, size=(3, 2), activation=nn.Tanh()),
    "bounded conv": lambda: Bounded(Conv(2, 2, size=(2, 2), bound=1.0), -3.0, 1.0, scale=0.7),
    "gradient flow": lambda: GradientFlow(nn.Linear(4, 6)),
    "hamiltonian": lambda: Hamiltonian(nn.Linear(2, 5), nn.Linear(2, 5)),
    "piecewise": lambda: Piecewise([MLP(3, 5, 1), MLP(3, 5, 1)], 1.0),
}


def dense_jacobian(field: Callable[[Tensor | float, Tensor], Tensor], t: Tensor | float, y: Tensor) -> Tensor:
    """(batch, d, d), sample by sample, in forward mode: nothing here is shared with the estimators."""
    d = y[0].numel()
    jacobians = [torch.func.jacfwd(lambda row: field(t, row[None])[0])(row).reshape(d, d) for row in y]
    return torch.stack(jacobians).detach()
