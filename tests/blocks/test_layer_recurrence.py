"""The recurrence along theta layers solves the equations of the dense matrix of a group."""

import pytest
import torch

from resolvent.blocks.strategies.layer_recurrence import Linearized, inverses, newton_direction, regular
from seeding import shifted


def group(k: int, layers: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(shifted(0))
    jacobians = 0.7 * torch.randn(3, layers, k, k, dtype=torch.float64, generator=generator)
    return jacobians, torch.randn(3, layers, k, dtype=torch.float64, generator=generator)


def mix(layers: int, theta: float) -> torch.Tensor:
    return torch.ones(layers, layers, dtype=torch.float64).tril(-1) + theta * torch.eye(layers, dtype=torch.float64)


def found(jacobians: torch.Tensor, theta: float) -> torch.Tensor:
    return inverses(torch.eye(jacobians.shape[-1], dtype=torch.float64) - theta * jacobians)


@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0])
@pytest.mark.parametrize(("k", "layers"), [(1, 7), (2, 1), (2, 6), (4, 5)])
def test_direction_and_derivative_are_those_of_the_dense_matrix(k: int, layers: int, theta: float) -> None:
    jacobians, r = group(k, layers)
    blocks = torch.stack([torch.block_diag(*sample) for sample in jacobians])
    M, L = (torch.kron(mix(layers, c), torch.eye(k, dtype=torch.float64)) for c in (theta, 1.0))
    A = torch.eye(layers * k, dtype=torch.float64) - M @ blocks
    direct = torch.linalg.solve(A, r.flatten(1))
    ours = newton_direction(found(jacobians, theta), r, theta)
    torch.testing.assert_close(ours.flatten(1), direct, atol=1e-9, rtol=1e-9)
    # y = b + L (q + J w), w = b + M (q + J w)
    x = r[:, 0].clone().requires_grad_()
    q = r.flip(1).clone().requires_grad_()
    b = x.repeat(1, layers)
    w = torch.linalg.solve(A, b + q.flatten(1) @ M.mT)
    y = b + (q.flatten(1) + (blocks @ w.unsqueeze(-1)).squeeze(-1)) @ L.mT
    weights = torch.sin(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
    expected = torch.autograd.grad((weights * y).sum(), [x, q])
    states = Linearized.apply(y.detach().reshape(r.shape), x, q, found(jacobians, theta), theta)
    got = torch.autograd.grad((weights * states.flatten(1)).sum(), [x, q])
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_singular_and_nearly_singular_matrices_are_not_regular(k: int) -> None:
    matrices = torch.eye(k, dtype=torch.float32).repeat(2, 3, 1, 1)
    assert regular(matrices, inverses(matrices))
    singular = matrices.clone()
    singular[1, 2, 0] = 0.0
    assert not regular(singular, inverses(singular))
    if k > 1:
        nearly = matrices.clone()
        nearly[1, 2, 0, :2] = torch.tensor([0.1, 0.7])
        nearly[1, 2, 1, :2] = 3 * nearly[1, 2, 0, :2] * (1 + torch.finfo(torch.float32).eps)
        assert not regular(nearly, inverses(nearly))
