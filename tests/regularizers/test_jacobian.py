"""The penalty on the Jacobian at an equilibrium: its value, and a gradient that flows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.regularizers import JacobianPenalty
from structured_states import Multiscale, images, joined

CLOSE = rs.Stopping(rtol=1e-12, atol=1e-13)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        with torch.no_grad():
            self.linear.weight.mul_(0.7)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(z)) + x


def jacobians(cell: Cell, z: Tensor) -> Tensor:
    """(batch, 3, 3), by hand."""
    return (1 - torch.tanh(cell.linear(z)).square())[:, :, None] * cell.linear.weight


def test_the_value_is_the_mean_square_of_the_jacobian() -> None:
    cell, x = Cell(), torch.randn(4, 3)
    z = rs.Equilibrium(cell, stopping=CLOSE)(x)
    expected = 0.5 * jacobians(cell, z).square().sum((1, 2)).mean() / 3
    torch.testing.assert_close(JacobianPenalty(0.5, exact=True)(cell, z, x), expected)
    generator = torch.Generator().manual_seed(0)
    estimate = JacobianPenalty(0.5, probes=1000, generator=generator)(cell, z, x)
    assert estimate.item() == pytest.approx(expected.item(), rel=0.15)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("detach", [True, False])
def test_the_gradient_agrees_with_finite_differences(exact: bool, detach: bool) -> None:
    """With `detach` the equilibrium is held fixed; without, it moves with weights and inputs."""
    layer = rs.Equilibrium(Cell(), stopping=CLOSE)
    x = torch.randn(2, 3, requires_grad=True)
    fixed = layer(x).detach()
    names, weights = zip(*layer.named_parameters(), strict=True)

    def penalty(x: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(names, weights, strict=True))
        of = JacobianPenalty(exact=exact, detach=detach, generator=torch.Generator().manual_seed(5))
        z = fixed if detach else torch.func.functional_call(layer, named, (x,))

        def f(z: Tensor, x: Tensor) -> Tensor:
            return torch.func.functional_call(layer.f, {n.removeprefix("f."): w for n, w in named.items()}, (z, x))  # type: ignore[arg-type]

        return of(f, z, x)

    assert torch.autograd.gradcheck(penalty, (x, *weights))


def test_the_gradient_reaches_all_weights_of_the_layer() -> None:
    layer, x = rs.Equilibrium(Cell()), torch.randn(4, 3)
    JacobianPenalty()(layer.f, layer(x), x).backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    assert all(gradient is not None and gradient.abs().max() > 1e-4 for gradient in gradients)


def test_training_with_it_makes_the_jacobian_small() -> None:
    layer, x = rs.Equilibrium(Cell()), torch.randn(8, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    penalty = JacobianPenalty(generator=torch.Generator().manual_seed(1))
    first = JacobianPenalty(exact=True)(layer.f, layer(x), x).item()
    for _ in range(10):
        optimizer.zero_grad()
        penalty(layer.f, layer(x), x).backward()
        optimizer.step()
    assert JacobianPenalty(exact=True)(layer.f, layer(x), x).item() < 0.5 * first


def test_states_of_several_tensors() -> None:
    scales, x = Multiscale(), images(2)
    flat = torch.func.vmap(torch.func.jacrev(lambda z: joined([part[0] for part in _unbatched(scales, z)])))
    z = rs.resolve(scales, x, 1.0).value
    J = flat(z)
    squares = sum(part.square().sum() for part in J) / 2
    expected = squares / joined(z).shape[1]
    torch.testing.assert_close(JacobianPenalty(exact=True)(scales, z), expected)


def _unbatched(scales: Multiscale, z: Any) -> Any:
    """Each part of the image as (1, 1, n), so that `joined` makes one row of it."""
    return [part.reshape(1, 1, -1) for part in scales([part[None] for part in z])]


def test_no_weight_costs_nothing() -> None:
    def f(z: Tensor) -> Tensor:
        raise AssertionError

    assert JacobianPenalty(0.0)(f, torch.ones(2, 3)) == 0


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"weight must be a finite number, 0 or more, got -1\.0"):
        JacobianPenalty(-1.0)
    with pytest.raises(ValueError, match="1 or more, got 0"):
        JacobianPenalty(probes=0)
