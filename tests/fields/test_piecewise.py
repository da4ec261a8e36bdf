"""Piecewise: which field is active when, one time for all and one for each sample."""

import math
from itertools import accumulate, repeat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resolvent.fields import MLP, Autonomous, Field, Piecewise


class Constant(Field):
    """A field with one value, and with its time added to tell what it was called with."""

    def __init__(self, value: float, rowwise: bool = True) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(float(value)))
        self.rowwise = rowwise

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.value + 0 * y


def constants(count: int, horizon: float = 1.0, rowwise: bool = True) -> Piecewise:
    return Piecewise([Constant(k, rowwise) for k in range(count)], horizon)


def value_at(field: Piecewise, t: float | Tensor) -> float:
    return float(field(t, torch.zeros(1, 1)).detach())


def test_continuous_from_the_right_at_the_breakpoints():
    field = constants(4, horizon=2.0)
    for k in range(4):
        assert value_at(field, 0.5 * k) == k
        assert value_at(field, 0.5 * k + 1e-6) == k
        assert value_at(field, 0.5 * k - 1e-6) == max(k - 1, 0)


def test_the_ends_reach_to_infinity():
    field = constants(3)
    assert [field.cell(t) for t in (-math.inf, math.inf)] == [0, 2]
    assert value_at(field, -5.0) == 0
    assert value_at(field, 1.0) == 2
    assert value_at(field, 1e6) == 2


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 200), st.floats(1e-3, 1e3))
def test_a_multiple_of_the_step_lies_in_its_cell(count, horizon):
    field = Piecewise([Constant(0)] * count, horizon)
    h = horizon / count
    by_product = torch.tensor([k * h for k in range(count)])
    by_sum = torch.tensor(list(accumulate(repeat(h, count - 1), initial=0.0)))
    for times in (by_product, by_sum, by_product.float()):
        assert torch.equal(field.cells(times), torch.arange(count))
    assert [field.cell(float(t)) for t in by_sum] == list(range(count))


@pytest.mark.parametrize("rowwise", [True, False])
def test_each_sample_has_its_own_time(rowwise):
    field = constants(5, rowwise=rowwise)
    t = torch.tensor([0.9, 0.1, 0.2, 0.59, 0.1, 7.0, -1.0])
    y = torch.zeros(7, 2, 3)
    assert torch.equal(field(t, y)[:, 0, 0], torch.tensor([4.0, 0, 1, 2, 0, 4, 0]))


@pytest.mark.parametrize("rowwise", [True, False])
def test_samples_with_their_own_times_equal_themselves_alone(rowwise):
    pieces = [MLP(2, 4, 1, nn.Tanh()) for _ in range(4)]
    for piece in pieces:
        piece.rowwise = rowwise
    field = Piecewise(pieces, 1.0)
    t, y = torch.rand(9), torch.randn(9, 2)
    together = field(t, y)
    alone = torch.cat([field(float(s), x[None]) for s, x in zip(t, y, strict=True)])
    assert torch.allclose(together, alone, atol=1e-14)


@pytest.mark.parametrize("rowwise", [True, False])
def test_gradients_go_to_the_samples_and_to_the_fields_that_acted(rowwise):
    pieces = [MLP(2, 3, 0, nn.Tanh()) for _ in range(3)]
    for piece in pieces:
        piece.rowwise = rowwise
    field = Piecewise(pieces, 3.0)
    t = torch.tensor([2.5, 0.5, 2.1, 0.0])
    assert torch.autograd.gradcheck(lambda y: field(t, y), torch.randn(4, 2, requires_grad=True))
    field(t, torch.randn(4, 2)).square().sum().backward()
    touched = [all(p.grad is not None and p.grad.any() for p in piece.parameters()) for piece in pieces]
    assert touched == [True, False, True]


class Clock(Field):
    rowwise = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.as_tensor(t).reshape(-1, 1) + 0 * y


def test_the_pieces_are_told_the_time_of_their_samples():
    t = torch.tensor([0.7, 0.2, 0.9])
    assert torch.equal(Piecewise([Clock(), Clock()], 1.0)(t, torch.zeros(3, 1))[:, 0], t)
    assert torch.equal(Piecewise([Clock(), Clock()], 1.0)(torch.tensor(0.7), torch.zeros(1, 1)), torch.tensor([[0.7]]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode
def test_transforms_with_one_time():
    field = Piecewise([MLP(2, 4, 1, bound=1.0) for _ in range(3)], 1.0)
    y = torch.randn(5, 2)
    single = torch.func.vmap(lambda x: field(0.5, x[None])[0])(y)
    assert torch.allclose(single, field(0.5, y))
    jacobian = torch.func.vmap(torch.func.jacrev(lambda x: field(0.5, x[None])[0]))(y)
    assert jacobian.shape == (5, 2, 2)
    _, tangent = torch.func.jvp(lambda x: field(0.5, x), (y,), (torch.ones_like(y),))
    assert torch.allclose(tangent, jacobian.sum(-1))


def test_what_the_pieces_have_in_common():
    linear = lambda c: Autonomous(nn.Identity(), linear_part=c, lipschitz=1.0, rowwise=True, shape=(2,))  # noqa: E731
    same = Piecewise([linear(-2.0), linear(-2.0)], 1.0)
    assert (same.linear_part, same.bound, same.shape, same.rowwise, same.autonomous) == (-2.0, 1.0, (2,), True, False)
    assert Piecewise([linear(-2.0), linear(-1.0)], 1.0).linear_part is None
    assert Piecewise([linear(-2.0), Constant(1)], 1.0).linear_part is None
    assert Piecewise([linear(-2.0), Constant(1)], 1.0).bound is None
    with pytest.raises(ValueError, match="Constant has no guaranteed"):
        Piecewise([linear(-2.0), Constant(1)], 1.0).lipschitz()
    with pytest.raises(ValueError, match=r"one for each of 4 samples, got \(3,\)"):
        same(torch.zeros(3), torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("fields", "horizon", "words"),
    [([], 1.0, "at least one"), ([0], 0.0, "got 0"), ([0], math.inf, "inf"), ([0], "1", "got '1'")],
)
def test_wrong_arguments_are_refused(fields, horizon, words):
    with pytest.raises(ValueError, match=words):
        Piecewise([Constant(k) for k in fields], horizon)


def test_without_a_horizon_or_a_block_time_has_no_meaning():
    field = Piecewise([Constant(0), Constant(1)])
    for act in (lambda: field(0.5, torch.zeros(1, 1)), lambda: field.cells(torch.zeros(2)), lambda: field.horizon):
        with pytest.raises(
            ValueError, match=r"give it to a block, .* or make it with Piecewise\(fields, horizon=...\)"
        ):
            act()
