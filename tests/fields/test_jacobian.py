"""Fields that know their Jacobian know the right one, and say so only as long as it is."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import resolvent as rs
from resolvent.equation.function import value_of
from resolvent.fields import MLP, Bounded, Field
from resolvent.fields.activations import Sin

ACTIVATIONS = [
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Identity(),
    nn.ReLU(),
    nn.Sigmoid(),
    nn.SiLU(),
    nn.Softplus(),
    nn.Softplus(beta=3.0),
    nn.Tanh(),
    Sin(),
]


def check(field: Field, y: Tensor) -> None:
    assert field.value_and_jacobian is not None
    value, jacobian = field.value_and_jacobian(0.0, y)
    torch.testing.assert_close(value, field(0.0, y))
    torch.testing.assert_close(jacobian, torch.func.vmap(torch.func.jacrev(lambda z: field(0.0, z[None])[0]))(y))
    assert not jacobian.requires_grad
    assert value.requires_grad == (value_of(field.value_and_jacobian) is not None)
    if value.requires_grad:
        weights = list(field.parameters())
        ours, exact = (torch.autograd.grad(x.square().sum(), weights) for x in (value, field(0.0, y)))
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_it_is_what_autograd_finds(activation: nn.Module, depth: int) -> None:
    check(MLP(3, 7, depth, activation), torch.randn(5, 3))


@pytest.mark.parametrize("activation", [nn.GELU(), nn.Tanh()], ids=str)
@pytest.mark.parametrize("shift", [False, True])
def test_bounded_fields(activation: nn.Module, shift: bool) -> None:
    field = Bounded(MLP(3, 7, 2, activation, bound=1.0), -4.0, -1.0, learn_shift=shift)
    with torch.no_grad():
        field.raw_scale.copy_(torch.randn(3))
        if shift:
            field.raw_shift.fill_(0.7)
    check(field, torch.randn(5, 3))


def test_parametrized_weights() -> None:
    field = MLP(3, 7, 2, nn.Tanh())
    for layer in field.layers:
        parametrizations.weight_norm(layer)
    check(field, torch.randn(5, 3))


def test_what_changes_the_field_takes_it_away() -> None:
    class Doubled(MLP):
        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return 2 * super().forward(t, y)

    hooked, replaced = MLP(3, 7, 1), MLP(3, 7, 1)
    hooked.layers[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    replaced.layers[1] = nn.Sequential(nn.Linear(7, 7))
    for field in (Doubled(3, 7, 1), hooked, replaced, MLP(3, 7, 1, nn.Mish())):
        assert field.value_and_jacobian is None
        x = torch.randn(4, 3)
        for mode in ("parallel", "sequential"):
            y = rs.ThetaBlock(field, 1.0, 2, 0.4, mode=mode).trajectory(x).states
            torch.testing.assert_close(y[1], x + 0.2 * field(0.0, y[1]), atol=1e-8, rtol=0)


def test_solvers_use_it() -> None:
    calls = 0

    class Counted(MLP):
        @property
        def value_and_jacobian(self):
            nonlocal calls
            calls += 1
            return super().value_and_jacobian

    x = torch.randn(4, 3)
    for mode in ("parallel", "sequential"):
        calls = 0
        rs.ThetaBlock(Counted(3, 7, 1), 0.5, 3, 0.6, mode=mode)(x)
        assert calls > 0


def test_a_jacobian_of_one_s_own() -> None:
    """w = b - w^3 / 2, told by hand."""
    b, seen = torch.randn(6, 2, requires_grad=True), []

    def value_and_jacobian(w: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(w))
        return -(w**3), torch.diag_embed(-3 * w**2)

    value = rs.resolve(
        rs.Rowwise(lambda w: -(w**3), value_and_jacobian=value_and_jacobian), b, 0.5, solver=rs.Newton()
    ).value
    torch.testing.assert_close(value + value**3 / 2, b, atol=1e-8, rtol=0)
    (gradient,) = torch.autograd.grad(value.sum(), b)
    torch.testing.assert_close(gradient, 1 / (1 + 1.5 * value**2), atol=1e-7, rtol=0)
    assert len(seen) > 1
