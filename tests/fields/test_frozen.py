"""A field does not change while an equation with it is solved, forward or backward."""

import copy

import pytest
import torch
from torch import Tensor, nn

from resolvent import resolve
from resolvent.fields import MLP, Bounded, Conv, Field, GradientFlow, Hamiltonian, Piecewise

FIELDS = {
    "mlp": lambda: MLP(2, 5, 2, bound=1.0, always=True),
    "conv": lambda: Conv(2, 2, size=(4, 4), bound=1.0, always=True),
    "gradient": lambda: GradientFlow(nn.Linear(2, 5), bound=1.0, always=True),
    "hamiltonian": lambda: Hamiltonian(nn.Linear(2, 5), nn.Linear(2, 5), bound=1.0, always=True),
    "bounded": lambda: Bounded(MLP(2, 5, 2, bound=1.0, always=True), -4.0, 0.5, learn_shift=True),
    "piecewise": lambda: Piecewise([MLP(2, 5, 1, bound=1.0, always=True) for _ in range(3)], 1.0),
}


def train_a_little(field: Field, steps: int = 3) -> None:
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        field(0.5, torch.randn(8, *field.shape)).square().sum().backward()
        optimizer.step()


def solve(field: Field, b: Tensor) -> Tensor:
    """w = b + 0.2 F(w), and what else a solver may evaluate: products with the Jacobian."""
    torch.func.vjp(lambda x: field(0.5, x), b)[1](torch.ones_like(b))
    return resolve(lambda w: field(0.5, w), b, 0.2).value


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("training", [True, False])
def test_a_field_is_the_same_before_and_after_a_solve(kind, training):
    field = FIELDS[kind]()
    train_a_little(field)
    field.train(training)
    y = torch.randn(4, *field.shape, requires_grad=True)
    before = field(0.5, y)
    buffers = {name: value.clone() for name, value in field.named_buffers()}
    solve(field, y).square().sum().backward()
    assert torch.equal(field(0.5, y), before)
    assert all(torch.equal(value, buffers[name]) for name, value in field.named_buffers())


@pytest.mark.parametrize("kind", FIELDS)
def test_a_checkpoint_restores_a_field(kind):
    field, fresh = FIELDS[kind](), FIELDS[kind]()
    train_a_little(field)
    fresh.load_state_dict(field.state_dict())
    y = torch.randn(4, *field.shape)
    assert torch.allclose(fresh.eval()(0.5, y), field.eval()(0.5, y), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_copy_is_a_field_of_its_own(kind):
    field = FIELDS[kind]().eval()
    twin = copy.deepcopy(field)
    y = torch.randn(4, *field.shape)
    before = field(0.5, y)
    assert torch.allclose(twin(0.5, y), before, rtol=1e-5, atol=1e-8)
    train_a_little(twin.train())
    assert torch.equal(field(0.5, y), before)


@pytest.mark.parametrize("kind", FIELDS)
def test_single_precision(kind):
    field = FIELDS[kind]().eval()
    y = torch.randn(4, *field.shape)
    exact = field(0.5, y)
    single = field.float()(0.5, y.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), exact, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow if k == "conv" else ()) for k in FIELDS])
def test_gradients_of_all_weights(kind):
    field = FIELDS[kind]().eval()
    train_a_little(field)
    y = torch.randn(2, *field.shape)
    field(0.5, y)
    names = [name for name, parameter in field.named_parameters() if not name.startswith(("fields.0", "fields.2"))]
    weights = [dict(field.named_parameters())[name].detach().requires_grad_() for name in names]
    others = {n: v.detach() for n, v in field.state_dict().items()}

    def value(*weights: Tensor) -> Tensor:
        return torch.func.functional_call(field, {**others, **dict(zip(names, weights, strict=True))}, (0.5, y))

    assert torch.autograd.gradcheck(value, weights)
