"""The local Lipschitz constant of blocks and networks, by power iteration."""

import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent import analysis, schemes
from resolvent.analysis import Jacobian, local_lipschitz
from resolvent.blocks import Block, ThetaBlock
from resolvent.fields import MLP, Bounded, Conv, Piecewise

SHARP = rs.Stopping(rtol=1e-12, atol=1e-13)


def gains(model: object, x: torch.Tensor) -> torch.Tensor:
    """By singular values of the whole Jacobian."""
    return torch.linalg.matrix_norm(Jacobian(model, x).matrix().detach(), 2)


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
def test_theta_blocks(theta: float, form: str) -> None:
    field = Piecewise([MLP(4, 8, 2, activation=nn.Tanh()) for _ in range(3)], 1.0)
    block = ThetaBlock(field, theta, 3, 1.0, form, stopping=SHARP)
    x = torch.randn(6, 4)
    torch.testing.assert_close(local_lipschitz(block, x, rtol=1e-9), gains(block, x), atol=1e-8, rtol=0)


@pytest.mark.parametrize("scheme", [schemes.BDF2, schemes.RungeKutta(schemes.tableaux.RADAU3)])
def test_other_blocks(scheme: schemes.Scheme) -> None:
    block, x = Block(MLP(4, 8, 2, activation=nn.Tanh()), scheme, 4, stopping=SHARP), torch.randn(6, 4)
    torch.testing.assert_close(local_lipschitz(block, x, rtol=1e-9), gains(block, x), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    "options", [{"memory": "checkpoint"}, {"memory": "reversible"}, {"adjoint": rs.OneStepAdjoint()}]
)
def test_is_exact_whatever_the_adjoint_and_memory(options: dict[str, object]) -> None:
    field, x = MLP(4, 8, 2, activation=nn.Tanh()), torch.randn(3, 4)
    plain = local_lipschitz(ThetaBlock(field, 0.5, 3, stopping=SHARP), x, rtol=1e-9)
    torch.testing.assert_close(
        local_lipschitz(ThetaBlock(field, 0.5, 3, stopping=SHARP, **options), x, rtol=1e-9), plain
    )


def test_linear_network_with_another_shape_at_its_end() -> None:
    layer = nn.Linear(5, 2)
    norm = torch.linalg.matrix_norm(layer.weight.detach(), 2)
    torch.testing.assert_close(local_lipschitz(layer, torch.randn(3, 5), rtol=1e-10), norm.expand(3))


def test_images_and_the_certificate() -> None:
    """The constant of one input stays below the bound that holds for all."""
    block = ThetaBlock(Bounded(Conv(2, 2, size=(4, 4), bound=1.0), -2.0, 0.5), 0.5, 2, 1.0).eval()
    x = torch.randn(3, 2, 4, 4)
    measured = local_lipschitz(block, x, rtol=1e-8)
    torch.testing.assert_close(measured, gains(block, x), atol=1e-6, rtol=0)
    assert measured.max() <= analysis.lipschitz_bound(block)
    assert not measured.requires_grad


def test_difference_quotients_do_not_exceed_it() -> None:
    block, x = ThetaBlock(MLP(4, 8, 2, activation=nn.Tanh()), 0.5, 3), torch.randn(1, 4)
    shifts = 1e-5 * nn.functional.normalize(torch.randn(200, 4), dim=1)
    with torch.no_grad():
        quotients = (block(x + shifts) - block(x)).norm(dim=1) / 1e-5
    constant = float(local_lipschitz(block, x, rtol=1e-8))
    assert 0.9 * constant < quotients.max() < constant * (1 + 1e-4)
