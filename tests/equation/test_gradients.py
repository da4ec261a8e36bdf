"""Derivatives: against finite differences, against unrolling, for every backward solver, to the promised order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import resolvent as rs
from manufactured import LINEAR_SOLVERS, PROBLEMS, SOLVERS, Manufactured
from resolvent.extending import Adjoint, Solver
from seeding import shifted

TIGHT = rs.Stopping(rtol=1e-12, atol=1e-13)


def inputs(batch: int = 2, n: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(shifted(1))
    b = torch.randn(batch, n, generator=generator).requires_grad_()
    # With singular values of 0.6 no draw comes near to a singular I - tau F'.
    W = (0.6 * torch.linalg.qr(torch.randn(n, n, generator=generator)).Q).requires_grad_()
    return b, torch.tensor(0.7, requires_grad=True), W


def layer(b: Tensor, tau: Tensor, W: Tensor, **options: object) -> Tensor:
    return rs.resolve(lambda w: torch.tanh(w @ W.mT), b, tau, **options).value  # type: ignore[arg-type]


SLOW = (rs.Neumann, rs.Broyden, rs.Anderson)


@pytest.mark.parametrize(
    "linear", [pytest.param(s, marks=pytest.mark.slow if isinstance(s, SLOW) else ()) for s in LINEAR_SOLVERS], ids=str
)
def test_first_and_second_derivatives_by_every_backward_solver(linear: Solver) -> None:
    adjoint = rs.ImplicitAdjoint(solver=linear, order=2)
    assert gradcheck(lambda *args: layer(*args, adjoint=adjoint, stopping=TIGHT), inputs())
    assert gradgradcheck(lambda *args: layer(*args, adjoint=adjoint, stopping=TIGHT), inputs())


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_gradient_does_not_depend_on_the_forward_solver(solver: Solver) -> None:
    b, tau, W = inputs()
    exact = torch.autograd.grad(layer(b, tau, W, solver=rs.Newton(), stopping=TIGHT).sin().sum(), (b, tau, W))
    # Descent on a square stalls in rounding beyond this.
    stopping = rs.Stopping(rtol=1e-8, atol=1e-8)
    value = layer(b, tau, W, solver=solver, stopping=stopping)
    for got, expected in zip(torch.autograd.grad(value.sin().sum(), (b, tau, W)), exact, strict=True):
        assert (got - expected).abs().max() < 1e-6


@pytest.mark.parametrize("solver", [rs.Picard(), rs.Anderson(), rs.Broyden(), rs.Newton()], ids=str)
def test_implicit_equals_unrolled_equals_finite_differences(solver: Solver) -> None:
    stopping = rs.Stopping(rtol=1e-11, atol=1e-12)
    args = inputs()
    gradients = []
    for adjoint in (rs.ImplicitAdjoint(), rs.UnrolledAdjoint()):
        value = layer(*args, solver=solver, adjoint=adjoint, stopping=stopping)
        gradients.append(torch.autograd.grad(value.exp().sum(), args))
    # Newton's residual falls with the square of the last step, times the curvature of F, but the derivative of that
    # step belongs to the iterate before it: where F is nearly linear, it has far fewer digits than the residual.
    digits = 1e-3 if isinstance(solver, rs.Newton) else 1e-8
    for implicit, unrolled in zip(*gradients, strict=True):
        assert (implicit - unrolled).abs().max() < digits * (1 + implicit.abs().max())
    assert gradcheck(lambda *a: layer(*a, solver=solver, stopping=stopping), args)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_gradient_on_every_problem(problem: Manufactured) -> None:
    """In b and tau, against the inverse of the assembled matrix."""
    case = problem.build(torch.float64)
    b = case.b.clone().requires_grad_()
    tau = torch.tensor(case.tau, requires_grad=True)
    solution = rs.resolve(case.F, b, tau)
    g = torch.randn_like(b)
    grad_b, grad_tau = torch.autograd.grad(solution.value, (b, tau), g)
    n = b[0].numel()
    expected_tau = 0.0
    for i, w in enumerate(solution.value.detach()):
        jacobian = torch.autograd.functional.jacobian(lambda v: case.F(v[None])[0], w).reshape(n, n)
        u = torch.linalg.solve((torch.eye(n) - case.tau * jacobian).T, g[i].flatten())
        assert (grad_b[i].flatten() - u).norm() <= 1e-7 * (1 + u.norm()) / min(1.0, case.least_singular_value)
        expected_tau += (u @ case.F(w[None])[0].flatten()).item()
    assert abs(grad_tau.item() - expected_tau) <= 1e-5 * (1 + abs(expected_tau))


def test_per_sample_tau() -> None:
    b, _, W = inputs(batch=3)
    tau = torch.tensor([0.2, 0.5, 0.9], requires_grad=True)
    adjoint = rs.ImplicitAdjoint(order=2)
    assert gradcheck(lambda *a: layer(*a, adjoint=adjoint, stopping=TIGHT), (b, tau, W))
    assert gradgradcheck(lambda *a: layer(*a, adjoint=adjoint, stopping=TIGHT), (b, tau, W))
    alone = torch.cat([layer(b[i : i + 1], tau[i], W, stopping=TIGHT) for i in range(3)])
    assert (layer(b, tau, W, stopping=TIGHT) - alone).abs().max() < 1e-11


def test_third_derivatives_of_order_three() -> None:
    """For w = b + tau w^2 / 2 the solution (1 - sqrt(1 - 2 tau b)) / tau is known, and so are its derivatives."""
    b = torch.tensor([[0.3]], requires_grad=True)
    value = rs.resolve(lambda w: w**2 / 2, b, 0.5, adjoint=rs.ImplicitAdjoint(order=3), stopping=TIGHT).value
    exact = (1 - (1 - b).sqrt()) / 0.5
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sum(), b, create_graph=True)
        (exact,) = torch.autograd.grad(exact.sum(), b, create_graph=True)
        assert (value - exact).abs().item() < 1e-9
    with pytest.raises(rs.errors.DerivativeOrderError, match="order"):
        torch.autograd.grad(value.sum(), b)


@pytest.mark.parametrize(
    "adjoint",
    [rs.ImplicitAdjoint(), rs.adjoints.NeumannAdjoint(terms=30), rs.OneStepAdjoint()],
    ids=lambda a: type(a).__name__,
)
def test_a_second_derivative_that_was_not_prepared_raises(adjoint: Adjoint) -> None:
    b, tau, W = inputs()
    for wanted in (b, tau, W):
        value = layer(b, tau, W, adjoint=adjoint)
        (gradient,) = torch.autograd.grad(value.sin().sum(), wanted, create_graph=True)
        with pytest.raises(rs.errors.DerivativeOrderError, match=r"ImplicitAdjoint\(order=2\)"):
            torch.autograd.grad(gradient.sum(), wanted)


def test_a_derivative_by_the_cotangent_is_no_second_derivative() -> None:
    """vjps are linear in the cotangent, so that differentiating one gives a jvp, at order 1 too."""
    b, tau, W = inputs()
    cotangent = torch.ones(2, 3, requires_grad=True)
    (u,) = torch.autograd.grad(layer(b, tau, W), b, cotangent, create_graph=True)
    direction = torch.randn(2, 3)
    (jvp,) = torch.autograd.grad(u, cotangent, direction)
    step = 1e-6
    difference = layer(b + step * direction, tau, W, stopping=TIGHT) - layer(
        b - step * direction, tau, W, stopping=TIGHT
    )
    assert (jvp - difference / (2 * step)).abs().max() < 1e-8


def tangent(b: torch.Tensor, tau: torch.Tensor, W: torch.Tensor, order: int) -> torch.Tensor:
    """The jvp in a direction of b, by the derivative of a vjp by its cotangent; it has a graph."""
    cotangent = torch.ones(2, 3, requires_grad=True)
    value = layer(b, tau, W, adjoint=rs.ImplicitAdjoint(order=order), stopping=TIGHT)
    (u,) = torch.autograd.grad(value, b, cotangent, create_graph=True)
    (jvp,) = torch.autograd.grad(u, cotangent, torch.linspace(-1, 1, 6).view(2, 3), create_graph=True)
    return jvp


@pytest.mark.slow
def test_a_derivative_by_the_cotangent_has_derivatives_in_turn() -> None:
    assert gradcheck(lambda *a: tangent(*a, order=2), inputs())
    assert gradgradcheck(lambda *a: tangent(*a, order=3), inputs())


@pytest.mark.parametrize("order", [1, 2])
def test_a_derivative_by_the_cotangent_raises_where_its_derivatives_were_not_prepared(order: int) -> None:
    arguments = inputs()
    for wanted in arguments:
        gradient = tangent(*arguments, order=order)
        for _ in range(order - 1):
            (gradient,) = torch.autograd.grad(gradient.sin().sum(), wanted, create_graph=True)
        with pytest.raises(rs.errors.DerivativeOrderError, match="order=2"):
            torch.autograd.grad(gradient.sum(), wanted)


def test_value_requires_grad_exactly_where_something_does() -> None:
    b, tau, W = (t.detach() for t in inputs())
    parameter = W.clone().requires_grad_()
    assert not layer(b, tau, W).requires_grad
    assert layer(b.clone().requires_grad_(), tau, W).requires_grad
    assert layer(b, tau.clone().requires_grad_(), W).requires_grad
    assert layer(b, tau, parameter).requires_grad
    assert layer(b, tau, parameter * 2).requires_grad
    with torch.no_grad():
        assert not layer(b, tau, parameter).requires_grad


def test_fields_that_ignore_their_argument_or_have_no_derivative() -> None:
    b = torch.randn(2, 3, requires_grad=True)
    constant = torch.randn(3, requires_grad=True)
    value = rs.resolve(lambda w: constant.expand_as(w), b, 0.5).value
    gradients = torch.autograd.grad(value.sum(), (b, constant))
    assert torch.equal(gradients[0], torch.ones(2, 3))
    assert (gradients[1] - 1.0).abs().max() < 1e-12
    for solver in SOLVERS:
        assert (rs.resolve(lambda w: torch.zeros_like(w), b, 0.5, solver=solver).value - b).abs().max() == 0


def test_in_place_change_of_the_value_is_noticed() -> None:
    b, tau, W = inputs()
    value = layer(b, tau, W)
    total = value.sum()
    with torch.no_grad():
        value += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_approximate_adjoints_and_their_measured_error() -> None:
    """The error of k terms of the Neumann series falls like the contraction factor to the power k."""
    b, _, W = inputs(batch=4, n=6)

    def F(w: Tensor) -> Tensor:
        return 0.5 * w @ torch.linalg.qr(W).Q

    errors = {
        k: rs.analysis.gradient_error(rs.adjoints.NeumannAdjoint(terms=k), F, b, 1.0, parameters=[W])
        for k in (0, 1, 4, 8)
    }
    assert errors[0].relative == pytest.approx(rs.analysis.gradient_error(rs.OneStepAdjoint(), F, b, 1.0, [W]).relative)
    for k in (0, 1, 4, 8):
        assert 0.1 * 0.5 ** (k + 1) < errors[k].by_input["b"] < 2 * 0.5 ** (k + 1)
    assert errors[0].cosine > 0.5
    exact = rs.analysis.gradient_error(rs.ImplicitAdjoint(rs.GMRES()), F, b, torch.tensor(1.0), [W])
    assert exact.relative < 1e-8
    assert set(exact.by_input) == {"parameters[0]", "b", "tau"}


def test_gradient_error_takes_the_parameters_of_a_module() -> None:
    module = torch.nn.Linear(3, 3)
    error = rs.analysis.gradient_error(rs.OneStepAdjoint(), module, torch.randn(2, 3), 0.3)
    assert set(error.by_input) == {"parameters[0]", "parameters[1]", "b"}
    assert 0 < error.relative < 1


def test_one_step_is_exact_for_a_purely_linear_part() -> None:
    b = torch.randn(2, 3)
    error = rs.analysis.gradient_error(rs.OneStepAdjoint(), rs.Rowwise(lambda w: -3 * w, linear_part=-3.0), b, 2.0)
    assert error.relative < 1e-14


def test_what_cannot_be_unrolled_says_so() -> None:
    b, tau, W = inputs()
    with pytest.raises(ValueError, match="cannot be unrolled"):
        layer(b, tau, W, solver=rs.LBFGS(), adjoint=rs.UnrolledAdjoint())


def test_backward_statistics_and_newton_matrix_reuse() -> None:
    b, tau, W = inputs()
    seen: list[rs.Solution] = []
    for solver in (rs.Newton(), rs.Anderson()):
        layer(b, tau, W, solver=solver, adjoint=rs.ImplicitAdjoint(callback=seen.append)).sum().backward()
    newton, anderson = seen
    assert isinstance(newton.solvers[0], rs.DenseLU)
    assert newton.converged.all()
    assert newton.residual.max() < 1e-12
    assert newton.vjps == 0  # the matrix is the one Newton left
    assert anderson.vjps == 3  # a row of the matrix each
    seen.clear()
    layer(b, tau, W, adjoint=rs.ImplicitAdjoint(rs.GMRES(), callback=seen.append)).sum().backward()
    assert seen[0].vjps == 3 + 2  # exact after n steps, and the residual is measured before and after
    assert seen[0].evaluations == 0


def test_a_small_cotangent_is_solved_as_well_as_a_large_one() -> None:
    """Losses are means over batches, so cotangents are tiny; the tolerance must be relative to them."""
    b, tau, W = inputs()
    for linear in LINEAR_SOLVERS:
        value = layer(b, tau, W, adjoint=rs.ImplicitAdjoint(linear))
        (large,) = torch.autograd.grad(value.sum(), b, retain_graph=True)
        (small,) = torch.autograd.grad(value.sum() * 1e-12, b)
        assert (small * 1e12 - large).abs().max() < 1e-7


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradient_error_needs_no_autograd_around_it(mode: Callable[[], Any]) -> None:
    module, b = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()), torch.randn(2, 3)
    condition = torch.rand(2, 3)

    def errors(b: Tensor, tau: Tensor, condition: Tensor) -> list[rs.analysis.GradientComparison]:
        F = rs.Rowwise(lambda w, c: torch.tanh(w) * c, condition)
        closed = lambda w: torch.tanh(w) * condition  # noqa: E731
        return [rs.analysis.gradient_error(rs.OneStepAdjoint(), f, b, tau) for f in (module, F, closed)]

    expected = errors(b, torch.tensor(0.3), condition)
    with mode():
        assert errors(b.clone(), torch.tensor(0.3), condition.clone()) == expected


def test_gradient_error_refuses_parameters_without_a_gradient() -> None:
    with torch.inference_mode():
        module = torch.nn.Linear(3, 3)
        with pytest.raises(ValueError, match=r"parameters\[0\].* were made in inference mode"):
            rs.analysis.gradient_error(rs.OneStepAdjoint(), module, torch.randn(2, 3), 0.3)
