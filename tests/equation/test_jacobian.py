"""The Jacobian of a function: its products, its derivatives, and the modes it is taken in."""

import pytest
import torch
from torch import Tensor, nn

from resolvent.equation.jacobian import Jacobian, field_jacobian


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 5))


def dense(function: nn.Module, x: Tensor) -> Tensor:
    """(batch, image, entries), by torch's own function."""
    return torch.stack([torch.func.jacrev(function)(row) for row in x]).detach()


def assert_is(jacobian: Jacobian, J: Tensor) -> None:
    v, u = torch.randn(J.shape[0], J.shape[2]), torch.randn(J.shape[0], J.shape[1])
    torch.testing.assert_close(jacobian.matrix().detach(), J)
    torch.testing.assert_close(jacobian.product(v).detach(), torch.einsum("bij,bj->bi", J, v))
    torch.testing.assert_close(jacobian.transposed_product(u).detach(), torch.einsum("bij,bi->bj", J, u))


def test_inference_mode_where_it_is_taken_and_where_it_is_used(network: nn.Module) -> None:
    x = torch.randn(2, 4)
    J = dense(network, x)
    with torch.inference_mode():
        inside = Jacobian(network, x.clone())
        assert_is(inside, J)
        assert not inside.matrix().requires_grad
        assert_is(Jacobian(network, x), J)
    assert_is(inside, J)
    outside = Jacobian(network, x)
    with torch.inference_mode():
        assert_is(outside, J)


def test_weights_that_were_made_in_inference_mode(network: nn.Module) -> None:
    x = torch.randn(2, 4)
    J = dense(network, x)
    with torch.inference_mode():
        copy = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 5))
        copy.load_state_dict(network.state_dict())
        assert_is(Jacobian(copy, x), J)
    assert_is(Jacobian(copy, x), J)


def test_an_error_of_the_function_is_its_own(network: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Jacobian(network, torch.randn(2, 3))


@pytest.mark.parametrize("detach", [True, False])
def test_products_are_differentiable(network: nn.Module, detach: bool) -> None:
    x, v, u = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4), torch.randn(2, 5)
    jacobian = Jacobian(network, x, detach)
    for product, expected in (
        (jacobian.product(v), lambda y: torch.func.jvp(network, (y,), (v,))[1]),
        (jacobian.transposed_product(u), lambda y: torch.func.vjp(network, y)[1](u)[0]),
    ):
        inputs = [network[0].weight, network[2].weight]
        inputs += [] if detach else [x]
        got = torch.autograd.grad(product.square().sum(), inputs, retain_graph=True)
        for a, e in zip(got, torch.autograd.grad(expected(x).square().sum(), inputs), strict=True):
            torch.testing.assert_close(a, e)
    with torch.no_grad():
        assert not jacobian.product(v).requires_grad
    assert not jacobian.value.requires_grad
    assert not jacobian.point.requires_grad


def test_autocast_keeps_the_dtype_of_the_point(network: nn.Module) -> None:
    network, x = network.float(), torch.randn(2, 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        jacobian = Jacobian(network, x)
        found = jacobian.value, jacobian.product(x), jacobian.transposed_product(jacobian.value), jacobian.matrix()
    assert {tensor.dtype for tensor in found} == {torch.float32}
    assert (found[3] - dense(network, x)).abs().max() < 4 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("detach", [True, False])
def test_transforms(network: nn.Module, detach: bool) -> None:
    x, v = torch.randn(3, 2, 4), torch.randn(2, 4)

    def squares(x: Tensor) -> Tensor:
        jacobian = Jacobian(network, x, detach)
        return jacobian.product(v).square().sum() + jacobian.matrix().square().sum()

    torch.testing.assert_close(torch.func.vmap(squares)(x), torch.stack([squares(row) for row in x]))
    gradient = torch.func.vmap(torch.func.grad(squares))(x)
    y = x.clone().requires_grad_()
    expected = torch.zeros_like(x)
    if not detach:
        (expected,) = torch.autograd.grad(sum(squares(row) for row in y), y)
    torch.testing.assert_close(gradient, expected)


def test_a_field_keeps_the_shape() -> None:
    y = torch.randn(2, 4)
    with pytest.raises(ValueError, match=r"took \(2, 4\) and gave \(2, 3\)"):
        field_jacobian(lambda t, y: y[:, :3], 0.0, y)
    with pytest.raises(ValueError, match=r"floating-point type, got torch\.int64"):
        field_jacobian(lambda t, y: y, 0.0, y.long())
