"""The penalty that keeps layers away from their poles."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from seeding import shifted


def linear(matrix: Tensor) -> rs.Autonomous:
    layer = nn.Linear(len(matrix), len(matrix), bias=False)
    layer.weight = nn.Parameter(matrix.clone())
    return rs.Autonomous(layer)


@pytest.mark.parametrize("size", [3, 20])
def test_the_value_for_a_linear_field(size: int) -> None:
    """nu is the largest eigenvalue of the symmetric part, however far the spectrum reaches to the left."""
    torch.manual_seed(shifted(0))
    basis = torch.linalg.qr(torch.randn(size, size)).Q
    matrix = basis @ torch.diag(torch.cat([torch.tensor([1.5]), -3 * torch.rand(size - 1)])) @ basis.T
    skew = torch.randn(size, size)
    field = linear(matrix + skew - skew.T)
    x = 0.1 * torch.randn(4, size)
    trajectory = rs.ThetaBlock(field, 0.5, 4, 2.0).trajectory(x)  # theta h nu = 0.375
    penalty = rs.regularizers.Solvability(2.0, 0.5, limit=0.1, iterations=20)
    torch.testing.assert_close(penalty(field, trajectory), torch.tensor(2 * 0.275**2), rtol=1e-4, atol=0)
    assert rs.regularizers.Solvability(2.0, 0.5)(field, trajectory) == 0


def test_the_gradient() -> None:
    torch.manual_seed(shifted(1))
    field = rs.fields.MLP(3, 8, 1, nn.Tanh())
    with torch.no_grad():
        trajectory = rs.ThetaBlock(field, 1.0, 3, 0.3).trajectory(torch.randn(5, 3))
    penalty = rs.regularizers.Solvability(1.0, 1.0, limit=-1.0)

    def value(weight: Tensor) -> Tensor:
        return torch.func.functional_call(_Wrapped(field, penalty, trajectory), {"field.layers.1.weight": weight}, ())

    assert torch.autograd.gradcheck(value, field.layers[1].weight.detach().clone().requires_grad_())


class _Wrapped(nn.Module):
    def __init__(self, field: nn.Module, penalty: Any, trajectory: Any) -> None:
        super().__init__()
        self.field, self.penalty, self.trajectory = field, penalty, trajectory

    def forward(self) -> Tensor:
        return self.penalty(self.field, self.trajectory)


@pytest.mark.parametrize("size", [2, 12])
def test_descent_brings_a_field_back_to_where_layers_are_solvable(size: int) -> None:
    torch.manual_seed(shifted(2))
    field = rs.fields.MLP(size, 16, 1, nn.Tanh())
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(2.0)
    x = torch.randn(32, size)
    states = rs.blocks.Trajectory(torch.tensor([0.0, 1.0]), torch.stack([x, x]), ())
    penalty = rs.regularizers.Solvability(1.0, 1.0, limit=0.8, iterations=8)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    assert rs.analysis.one_sided_lipschitz(field, 1.0, x).max() > 1
    for _ in range(300):
        optimizer.zero_grad()
        penalty(field, states).backward()
        optimizer.step()
    assert rs.analysis.one_sided_lipschitz(field, 1.0, x).max() < 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"weight": -1.0}, "-1"), ({"theta": 2.0}, "got 2"), ({"limit": 1.0}, "got 1"), ({"iterations": 0}, "got 0")],
)
def test_refused_arguments(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rs.regularizers.Solvability(**arguments)
