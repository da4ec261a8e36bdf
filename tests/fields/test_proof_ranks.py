"""A proof is for states with enough dimensions: layers for images take an image without a batch for one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import resolvent as rs
from seeding import shifted


class Own(nn.Module):
    def __init__(self, body: Callable[[Any, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(shape))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.body = body

    def forward(self, y: Tensor) -> Tensor:
        return self.body(self, y)


def attention(m: Own, y: Tensor) -> Tensor:
    h, _ = m.attention(y, y, y)
    return y + h


def attention_by_products(m: Own, y: Tensor) -> Tensor:
    weights = torch.softmax(torch.bmm(y, y.transpose(1, 2)) / 2, -1)
    return torch.bmm(weights, y) - y.mean(-2, keepdim=True)


def squeezed(m: Own, y: Tensor) -> Tensor:
    return y * torch.sigmoid(m.linear(y.mean((2, 3))))[:, :, None, None]


LEAST: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "entries": (lambda: nn.Sequential(nn.Tanh(), nn.Softplus()), 1),
    "features": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()), 2),
    "attention": (lambda: Own(attention), 3),
    "attention by products": (lambda: Own(attention_by_products), 3),
    "a convolution": (lambda: nn.Conv1d(4, 4, 3, padding=1), 3),
    "a convolution of images": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()), 4),
    "a weight for each channel": (lambda: nn.InstanceNorm2d(4, affine=True), 4),
    "statistics of matrices": (lambda: nn.LayerNorm((4, 4)), 3),
    "statistics of matrices by a function": (lambda: Own(lambda m, y: functional.layer_norm(y, (4, 4))), 3),
    "padding": (lambda: Own(lambda m, y: m.linear(y) + functional.pad(y, (0, 0, 1, -1))), 3),
    "padding as a layer": (lambda: nn.Sequential(nn.ZeroPad2d((0, 0, 1, -1)), nn.Linear(4, 4)), 3),
    "a constant": (lambda: Own(lambda m, y: torch.softmax(y + m.weight, 1).reshape(y.shape), 1, 1, 4), 3),
    "pooling": (lambda: Own(squeezed), 4),
}


@pytest.mark.parametrize("name", LEAST)
def test_a_state_has_the_dimensions_of_the_proof(name: str) -> None:
    make, rank = LEAST[name]
    module = make().double().eval()
    field = rs.Autonomous(module)
    assert field.rowwise
    generator = torch.Generator().manual_seed(shifted(0))
    y = torch.randn((3, *[4] * (rank - 1)), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([field(0.0, row) for row in y.split(1)]), field(0.0, y))
    with pytest.raises(ValueError, match=f"at least {rank} dimensions, .* add the dimension of the batch"):
        field(0.0, y[0])


def test_a_shape_that_is_declared_decides() -> None:
    assert rs.Autonomous(Own(attention), shape=(5, 4)).rowwise
    assert not rs.Autonomous(Own(attention), shape=(4,)).rowwise
    assert not rs.Autonomous(nn.LayerNorm((3, 4)), shape=(4,)).rowwise


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_declared_is_not_checked(declared: bool) -> None:
    image = torch.randn(4, 5, 5)
    assert rs.Autonomous(nn.Conv2d(4, 4, 3, padding=1), rowwise=declared)(0.0, image).shape == image.shape


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_refuses_a_sample_without_a_batch(training: bool) -> None:
    layer = rs.ThetaBlock(rs.Autonomous(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), 0.5, 2, 1.0)
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        layer.train(training)(torch.randn(4))


def test_a_known_rank_is_not_that_of_a_token() -> None:
    assert not rs.Autonomous(Own(lambda m, y: attention(m, y.flatten(1)).view(y.shape))).rowwise


class Fixed(nn.Module):
    """A function whose fixed point is an equilibrium."""

    def __init__(self, body: Callable[..., Tensor]) -> None:
        super().__init__()
        self.body, self.linear = body, nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, z: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.body(self, z, x, mask)


def given(m: Fixed, z: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
    return 0.1 * torch.tanh(m.linear(z)) + x + 0.1 * (z.mean(0) if mask is None else mask)


def attending(m: Fixed, z: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
    return 0.1 * m.attention(z, z, z)[0] + x


@pytest.mark.parametrize(("body", "shape", "mask"), [(given, (3, 4), None), (attending, (3, 4), torch.zeros(3, 4))])
def test_an_equilibrium_uses_a_proof_where_it_holds(body: Any, shape: tuple[int, ...], mask: Tensor | None) -> None:
    layer = rs.Equilibrium(Fixed(body))
    assert layer.rowwise
    z = torch.zeros(shape)
    assert not layer._function(layer.f, (z, mask), z).rowwise
    z = torch.zeros(3, 5, 4)
    assert layer._function(layer.f, (z, z), z).rowwise
