"""The paper's descent methods: the gradient of the squared residual, and the line search."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.equation.function import Function
from resolvent.equation.problem import NonlinearProblem
from resolvent.extending import Solver
from resolvent.solvers.descent import _objective
from resolvent.solvers.line_search import LineSearch, search


def test_gradient_of_the_squared_residual() -> None:
    """grad |r|^2 / 2 = -(I - tau F')^T r, against finite differences."""
    W, b = torch.randn(4, 4), torch.randn(2, 4)
    problem = NonlinearProblem(Function(lambda w: torch.tanh(w @ W)), b, 0.8, b.dtype, b.dtype)
    w = torch.randn(2, 4)
    _, gradient, *_ = _objective(problem, w)
    step = 1e-6
    for i in range(4):
        e = step * torch.eye(4)[i]
        difference = (_objective(problem, w + e)[0] - _objective(problem, w - e)[0]) / (2 * step)
        assert (gradient[:, i] - difference).abs().max() < 1e-8


@pytest.mark.parametrize("solver", [rs.GradientDescent(), rs.ConjugateGradient(), rs.LBFGS()], ids=str)
def test_every_method_reaches_the_same_root(solver: Solver) -> None:
    W, b = 0.6 * torch.randn(5, 5), torch.randn(3, 5)
    stopping = rs.Stopping(rtol=1e-8, atol=1e-8)
    expected = rs.resolve(lambda w: torch.tanh(w @ W), b, 0.8, solver=rs.Newton()).value
    value = rs.resolve(lambda w: torch.tanh(w @ W), b, 0.8, solver=solver, stopping=stopping).value
    assert (value - expected).abs().max() < 1e-6


def test_scaling_and_momentum_help_where_they_should() -> None:
    """A badly scaled quadratic: scaling by the squared inverse of its diagonal makes it round."""
    rates = torch.tensor([1.0, 3.0, 9.0])
    b = torch.randn(2, 3)

    def steps(**settings: object) -> int:
        solver = rs.GradientDescent(**settings)  # type: ignore[arg-type]
        return int(rs.resolve(lambda w: -rates * w, b, 1.0, solver=solver).steps.max())

    assert steps(scaling=(1 + rates) ** -2.0) < 10 < steps()
    assert steps(momentum=0.6) < steps()


@pytest.mark.parametrize("curvature", [0.9, 0.1])
@pytest.mark.parametrize("first", [1e-3, 0.5, 50.0])
def test_the_line_search_meets_the_strong_wolfe_conditions(first: float, curvature: float) -> None:
    """On functions with a minimum at 1, 0.01 and 30, each sample on a line of its own."""
    minimum = torch.tensor([1.0, 0.01, 30.0])

    def phi(t: Tensor) -> Tensor:
        return (t / minimum - 1) ** 2 * (1 + 0.1 * torch.sin(3 * t / minimum))

    def slope(t: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = t.clone().requires_grad_()
            return torch.autograd.grad(phi(leaf).sum(), leaf)[0]

    zero = torch.zeros(3)
    line = LineSearch.start(phi(zero), slope(zero), zero, torch.full((3,), first))
    accepted_at = torch.full((3,), torch.nan)
    for _ in range(30):
        trial = line.t
        line, accepted = search(line, phi(trial), slope(trial), curvature)
        accepted_at = torch.where(accepted & accepted_at.isnan(), trial, accepted_at)
    assert accepted_at.isfinite().all()
    assert (phi(accepted_at) <= phi(zero) + 1e-4 * accepted_at * slope(zero)).all()
    assert (slope(accepted_at).abs() <= curvature * slope(zero).abs()).all()


DESCENTS = [rs.GradientDescent(), rs.GradientDescent(momentum=0.5), rs.ConjugateGradient(), rs.LBFGS()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["64", "32"])
@pytest.mark.parametrize("solver", DESCENTS, ids=str)
def test_rounding_of_the_squares_does_not_end_the_descent(solver: Solver, dtype: torch.dtype) -> None:
    """A well-conditioned affine problem is solved to a few times the rounding of r, where a square has lost all digits
    that could tell a step forward from one back."""
    rates = torch.linspace(-3, 0.5, 6)
    q = torch.linalg.qr(torch.randn(6, 6)).Q
    A = (q @ torch.diag(rates) @ q.T).to(dtype)
    w = torch.randn(20, 6).to(dtype)
    b = w - w @ A
    # In single precision this is about the default.
    stopping = rs.Stopping(rtol=8 * torch.finfo(dtype).eps, atol=0.0)
    assert rs.resolve(lambda w: w @ A, b, 1.0, solver=solver, stopping=stopping, on_failure="ignore").converged.all()


def test_the_line_search_goes_by_slopes_where_values_cannot_tell() -> None:
    """Of a quadratic with its minimum at t = 1, the value at 0.9 came out too large by rounding."""
    one = torch.ones(1)
    decrease, too_large = 0.495 * 1e-12, 1e-12
    phi, slope = 0.5 * one, -1e-12 * one
    for rounding, expected in ((1e-14, False), (1e-11, True)):
        line = LineSearch.start(phi, slope, rounding * one, 0.9 * one)
        _, accepted = search(line, phi - decrease + too_large, 0.1 * slope, 0.9)
        assert accepted.item() is expected


def test_a_slope_that_is_not_finite_is_not_accepted() -> None:
    one = torch.ones(1)
    line, accepted = search(LineSearch.start(one, -one, 0 * one, one), 0.1 * one, torch.nan * one, 0.9)
    assert not accepted.item()
    assert 0 < line.t.item() < 1


def test_a_trial_that_is_not_finite_shortens_the_step() -> None:
    """sqrt leaves its domain at a full step."""
    b = torch.tensor([[1.0]])
    for solver in (rs.LBFGS(), rs.ConjugateGradient(), rs.GradientDescent()):
        solution = rs.resolve(lambda w: -4 * w.sqrt(), b, 1.0, solver=solver, stopping=rs.Stopping(1e-8, 1e-8))
        assert (solution.value - (5**0.5 - 2) ** 2).abs().item() < 1e-6
