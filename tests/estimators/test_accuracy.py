"""Estimates against dense Jacobians: exact options, standard errors, bias, variance."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from estimators.fields_under_test import FIELDS, dense_jacobian
from resolvent import estimators

TIME = 0.7
ROWS = 4000


def statistics_of(jacobian: Tensor) -> dict[str, Tensor]:
    diagonal = jacobian.diagonal(dim1=-2, dim2=-1)
    return {"trace": diagonal.sum(-1), "frobenius": jacobian.square().sum((-2, -1)), "diagonal": diagonal}


def assert_unbiased(samples: Tensor, exact: Tensor) -> None:
    """The mean over the first dimension within four standard errors of the exact values."""
    error = samples.std(0) / len(samples) ** 0.5
    # Where every estimate is exact, such as the trace of a diagonal matrix with signs, there is rounding alone.
    assert ((samples.mean(0) - exact).abs() <= 4 * error + 1e-10).all()


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_the_exact_options_are_those_of_the_dense_jacobian(field):
    F = field()
    y = torch.randn(5, *(F.shape or (3,)))
    for name, value in statistics_of(dense_jacobian(F, TIME, y)).items():
        estimate = getattr(estimators, name)(F, TIME, y, exact=True)
        assert torch.allclose(estimate.reshape(value.shape), value, rtol=0, atol=1e-12), name
    both = estimators.trace_and_frobenius(F, TIME, y, exact=True)
    assert torch.equal(both[0], estimators.trace(F, TIME, y, exact=True))
    assert torch.equal(both[1], estimators.frobenius(F, TIME, y, exact=True))


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
@pytest.mark.parametrize("name", ["trace", "frobenius", "diagonal"])
@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_estimates_are_unbiased(field, name, distribution):
    F = field()
    y = torch.randn(1, *(F.shape or (3,)))
    exact = statistics_of(dense_jacobian(F, TIME, y))[name][0]
    # The quotient of the diagonal has a variance from three Gaussian probes on, and a tame one a little later.
    probes = 8 if name == "diagonal" else 1
    many = y.expand(ROWS, *y.shape[1:])
    estimate = getattr(estimators, name)(F, TIME, many, probes=probes, distribution=distribution)
    samples = estimate.detach().reshape(ROWS, *exact.shape)
    assert_unbiased(samples, exact)


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_many_probes_come_within_four_standard_errors(field):
    F = field()
    y = torch.randn(3, *(F.shape or (3,)))
    J = dense_jacobian(F, TIME, y)
    exact, probes = statistics_of(J), 400
    error = (J + J.mT).square().sum((1, 2)).div(2 * probes).sqrt()
    trace, square = estimators.trace_and_frobenius(F, TIME, y, probes=probes)
    assert ((trace - exact["trace"]).abs() <= 4 * error).all()
    gram = J @ J.mT
    assert ((square - exact["frobenius"]).abs() <= 4 * (2 * gram.square().sum((1, 2)) / probes).sqrt()).all()
    off = J.square().sum(1) - exact["diagonal"].square()
    diagonal = estimators.diagonal(F, TIME, y, probes=probes).flatten(1)
    assert ((diagonal - exact["diagonal"]).abs() <= 4 * (off / probes).sqrt() + 1e-12).all()


def matrix_field(A: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda y: y @ A.T


@pytest.mark.parametrize("probes", [1, 5])
def test_the_variance_is_the_documented_one(probes):
    A = torch.randn(5, 5)
    y = torch.zeros(40_000, 5)
    S = A + A.T
    gaussian = S.square().sum() / (2 * probes)
    signs = (S.square().sum() - S.diagonal().square().sum()) / (2 * probes)
    estimate = partial(estimators.trace, matrix_field(A), None, y, probes=probes)
    assert estimate().var().item() == pytest.approx(gaussian.item(), rel=0.06)
    assert estimate(distribution="rademacher").var().item() == pytest.approx(signs.item(), rel=0.06)


def test_the_variance_of_the_diagonal_is_the_documented_one():
    A, n = torch.randn(4, 4), 12
    off = A.square().sum(0) - A.diagonal().square()
    y = torch.zeros(40_000, 4)
    estimate = partial(estimators.diagonal, matrix_field(A), None, y, probes=n)
    assert torch.allclose(estimate().var(0), off / n, rtol=0.06)
    assert torch.allclose(estimate(distribution="gaussian").var(0), off / (n - 2), rtol=0.06)


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_one_probe_gives_a_diagonal_matrix_exactly(distribution):
    entries = torch.randn(6)
    y = torch.randn(3, 6)
    estimate = estimators.diagonal(lambda y: entries * y, None, y, distribution=distribution)
    assert torch.allclose(estimate, entries.expand(3, 6), rtol=1e-12)


class TestHutchPlusPlus:
    def test_a_jacobian_of_low_rank_has_no_variance(self):
        A = torch.randn(12, 2) @ torch.randn(2, 12)
        y = torch.randn(50, 12)
        F = matrix_field(A)
        assert torch.allclose(
            estimators.trace(F, None, y, probes=6, hutchpp=True), A.trace().expand(50), rtol=0, atol=1e-10
        )
        assert estimators.trace(F, None, y, probes=6).std() > 0.1

    def test_as_many_directions_as_there_are_give_the_trace(self):
        A = torch.randn(3, 3)
        estimate = estimators.trace(matrix_field(A), None, torch.randn(4, 3), probes=12, hutchpp=True)
        assert torch.allclose(estimate, A.trace().expand(4), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
    @pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
    def test_it_is_unbiased(self, field, distribution):
        F = field()
        y = torch.randn(1, *(F.shape or (3,)))
        many = y.expand(ROWS, *y.shape[1:])
        estimate = estimators.trace(F, TIME, many, probes=5, distribution=distribution, hutchpp=True)
        assert_unbiased(estimate.detach(), dense_jacobian(F, TIME, y)[0].trace())

    def test_it_has_less_variance_at_the_same_cost_where_few_directions_dominate(self):
        Q = torch.linalg.qr(torch.randn(20, 20))[0]
        A = Q @ torch.diag(2.0 ** -torch.arange(20)) @ Q.T
        estimate = partial(estimators.trace, matrix_field(A), None, torch.zeros(2000, 20), probes=12)
        assert estimate(hutchpp=True).var() < estimate().var() / 10

    def test_its_derivative_is_unbiased_although_the_basis_counts_as_a_constant(self):
        W, y = torch.randn(5, 5), torch.randn(1, 5)
        scale = torch.full((ROWS, 1), 0.8, requires_grad=True)

        def F(z: Tensor) -> Tensor:
            return torch.tanh((scale * z) @ W)

        estimators.trace(F, None, y.expand(ROWS, 5), probes=4, hutchpp=True).sum().backward()
        one = torch.tensor(0.8, requires_grad=True)
        exact = estimators.trace(lambda z: torch.tanh(one * z @ W), None, y, exact=True)
        (derivative,) = torch.autograd.grad(exact.sum(), one)
        assert scale.grad.std() > 0.1
        assert_unbiased(scale.grad[:, 0], derivative)

    def test_the_basis_is_not_differentiated(self):
        A = torch.randn(6, 6, requires_grad=True)
        estimate = estimators.trace(matrix_field(A), None, torch.zeros(1, 6), probes=6, hutchpp=True)
        (gradient,) = torch.autograd.grad(estimate.sum(), A)
        # For a constant Q it is Q Q^T + P z z^T P; the derivative of Q would not be symmetric.
        assert torch.allclose(gradient, gradient.T, rtol=0, atol=1e-12)
        assert not torch.allclose(gradient, torch.eye(6), atol=0.1)
