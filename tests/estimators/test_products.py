"""What estimates cost, how they are differentiated, and what they accept."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from resolvent import estimators
from resolvent.equation.jacobian import field_jacobian
from resolvent.fields import MLP, Piecewise
from seeding import shifted


class Counted:
    """A field that counts its evaluations and the backward passes through it."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.products = 0
        counted = self

        class Count(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y: Tensor) -> Tensor:
                return y.clone()

            @staticmethod
            def backward(ctx, g: Tensor) -> Tensor:
                counted.products += 1
                return g.clone()

        self.count = Count.apply

    def __call__(self, t: float, y: Tensor) -> Tensor:
        self.evaluations += 1
        return torch.sin(self.count(y)).flip(1)


@pytest.mark.parametrize(
    ("name", "options", "products"),
    [
        ("trace", {}, 1),
        ("frobenius", {}, 1),
        ("diagonal", {}, 1),
        ("trace_and_frobenius", {}, 1),
        ("trace_and_frobenius", {"probes": 5}, 5),
        ("trace_and_frobenius", {"exact": True}, 4),
        ("diagonal", {"exact": True}, 4),
        ("trace", {"probes": 7, "hutchpp": True}, 7),
    ],
)
def test_one_evaluation_and_one_product_for_each_probe(name, options, products):
    F = Counted()
    getattr(estimators, name)(F, 0.0, torch.randn(3, 4), **options)
    assert (F.evaluations, F.products) == (1, products)


def test_trace_and_frobenius_share_their_probes():
    F, y = MLP(3, 5, 1), torch.randn(4, 3)
    seeded = partial(torch.Generator().manual_seed, shifted(1))
    trace, square = estimators.trace_and_frobenius(F, 0.0, y, probes=2, generator=seeded())
    assert torch.equal(trace, estimators.trace(F, 0.0, y, probes=2, generator=seeded()))
    assert torch.equal(square, estimators.frobenius(F, 0.0, y, probes=2, generator=seeded()))


ESTIMATES = {
    "trace": partial(estimators.trace, probes=2),
    "signs": partial(estimators.trace, probes=2, distribution="rademacher"),
    "exact trace": partial(estimators.trace, exact=True),
    "frobenius": partial(estimators.frobenius, probes=2),
    "exact frobenius": partial(estimators.frobenius, exact=True),
    "diagonal": partial(estimators.diagonal, probes=2),
    "gaussian diagonal": partial(estimators.diagonal, probes=3, distribution="gaussian"),
    "exact diagonal": partial(estimators.diagonal, exact=True),
}


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES.keys())
def test_derivatives_to_parameters_and_states(estimate):
    W, y = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)

    def value(W: Tensor, y: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(shifted(0))
        return estimate(lambda z: torch.tanh(z @ W) * z, None, y, generator=generator, detach=False)

    assert torch.autograd.gradcheck(value, (W, y))


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES.keys())
def test_states_are_constants_by_default(estimate):
    W, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    gradients = []
    for detach in (True, False):
        y = 2 * x
        value = estimate(
            lambda z: torch.tanh(z @ W) * z, None, y, generator=torch.Generator().manual_seed(shifted(0)), detach=detach
        )
        gradients.append(torch.autograd.grad(value.sum(), (W, x), allow_unused=True))
    assert torch.allclose(gradients[0][0], gradients[1][0], rtol=1e-12)
    assert gradients[0][1] is None
    assert gradients[1][1].abs().max() > 0.01


def test_detaching_is_the_default():
    parameter = torch.tensor(0.5, requires_grad=True)
    y = torch.randn(2, 3, requires_grad=True)
    estimators.trace(lambda y: torch.sin(parameter * y), None, y).sum().backward()
    assert y.grad is None
    assert parameter.grad is not None


def test_without_autograd_there_is_a_value_and_no_graph():
    F, y = MLP(3, 5, 1), torch.randn(4, 3)
    with torch.no_grad():
        for name in ("trace", "frobenius", "diagonal"):
            value = getattr(estimators, name)(F, 0.0, y, exact=True)
            assert not value.requires_grad
            assert torch.allclose(value, getattr(estimators, name)(F, 0.0, y, exact=True))
        assert not estimators.trace(F, 0.0, y, probes=3, hutchpp=True).requires_grad


def test_products_keep_no_graph_that_nobody_asked_for():
    with torch.no_grad():
        J = field_jacobian(MLP(3, 5, 1), 0.0, torch.randn(4, 3))
        assert not J.transposed_product(torch.ones(4, 3)).requires_grad
    assert J.transposed_product(torch.ones(4, 3)).requires_grad


def test_inference_mode_gives_the_same_values():
    F, y, t = Piecewise([MLP(3, 5, 1), MLP(3, 5, 1)], 1.0), torch.randn(4, 3), torch.tensor([0.1, 0.9, 0.5, 0.2])
    expected = estimators.diagonal(F, t, y, exact=True)
    with torch.inference_mode():
        assert torch.equal(estimators.diagonal(F, t.clone(), y.clone(), exact=True), expected)
        trace = estimators.trace(F, t.clone(), y.clone(), probes=9, hutchpp=True)
    assert torch.allclose(trace, expected.sum(1))
    assert not trace.requires_grad


def test_a_sample_alone_is_itself_in_a_batch():
    F, y = Piecewise([MLP(3, 5, 1), MLP(3, 5, 1)], 1.0), torch.randn(4, 3)
    t = torch.tensor([0.1, 0.9, 0.5, 0.2])
    together = estimators.trace(F, t, y, exact=True)
    alone = torch.cat([estimators.trace(F, float(t[i]), y[i : i + 1], exact=True) for i in range(4)])
    assert torch.allclose(together, alone, rtol=1e-12)
    assert (together - estimators.trace(F, 0.0, y, exact=True)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["trace", "frobenius", "diagonal"])
def test_a_field_that_does_not_depend_on_the_state_has_no_jacobian(name):
    y = torch.randn(2, 3)
    assert not getattr(estimators, name)(lambda y: torch.ones_like(y), None, y).any()


def test_shapes_and_precision_are_those_of_the_states():
    F = nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float32)
    y = torch.randn(3, 2, 4, 4, dtype=torch.float32)
    assert estimators.trace(F, None, y).shape == (3,)
    assert estimators.diagonal(F, None, y).shape == y.shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        estimates = [getattr(estimators, name)(F, None, y, exact=True) for name in ("trace", "frobenius", "diagonal")]
    assert {value.dtype for value in estimates} == {torch.float32}
    assert torch.allclose(estimates[0], estimators.trace(F, None, y, exact=True), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda F, y: estimators.trace(F, 0.0, y, probes=0), "1 or more, got 0"),
        (lambda F, y: estimators.trace(F, 0.0, y, probes=1.5), "got 1.5"),
        (lambda F, y: estimators.frobenius(F, 0.0, y, distribution="uniform"), "got 'uniform'"),
        (lambda F, y: estimators.diagonal(F, 0.0, y, generator=3), "got 3"),
        (lambda F, y: estimators.trace(F, 0.0, y, probes=2, hutchpp=True), "at least 3, got 2"),
        (lambda F, y: estimators.trace(F, 0.0, y, exact=True, hutchpp=True), "exclude each other"),
        (lambda F, y: estimators.trace(F, 0.0, y.long()), "got torch.int64"),
        (lambda F, y: estimators.trace(F, 0.0, 1.0), "got a float"),
        (lambda F, y: estimators.trace(lambda y: y[:, :2], None, y), r"took \(4, 3\) and gave \(4, 2\)"),
        (lambda F, y: estimators.trace(lambda y: (y, y), None, y), "gave tuple"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(MLP(3, 5, 1), torch.randn(4, 3))
