"""The linear solvers: exactness, restarts, preconditioners and their transposes."""

import itertools

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.equation.attempts import solve
from resolvent.equation.function import Function
from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization
from resolvent.equation.problem import NonlinearProblem
from resolvent.extending import Solver

METHODS = [rs.DenseLU(), rs.GMRES(), rs.GMRES(restart=4), rs.BiCGStab(), rs.Neumann()]


def system(F: Tensor, g: Tensor, transposed: bool, linear_part: float | None = None) -> LinearProblem:
    """(I - F) u = g or its transpose, F acting on the rows of a batch; one matrix for all, or one each."""

    def field(w: Tensor) -> Tensor:
        return (F @ w[:, :, None]).squeeze(2)

    problem = NonlinearProblem(Function(field, linear_part=linear_part), torch.zeros_like(g), 1.0, g.dtype, g.dtype)
    return LinearProblem(g, Linearization(problem, torch.zeros_like(g)), transposed)


def contraction(n: int = 7, batch: int = 3) -> Tensor:
    F = torch.randn(batch, n, n)
    return 0.7 * F / torch.linalg.matrix_norm(F, 2)[:, None, None]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_solves_and_reports_the_true_residual(method: Solver, transposed: bool) -> None:
    F, g = contraction(), torch.randn(3, 7)
    solution = solve(system(F, g, transposed), method, rs.Stopping(rtol=1e-10), torch.zeros_like(g))
    A = torch.eye(7) - (F.mT if transposed else F)
    assert solution.converged.all()
    assert (solution.value - torch.linalg.solve(A, g)).abs().max() < 1e-8
    true = (g - (A @ solution.value[:, :, None]).squeeze(2)).norm(dim=1) / 7**0.5
    assert (solution.residual - true).abs().max() < 1e-14


def test_gmres_is_exact_after_n_steps_and_not_before() -> None:
    n = 6
    F = torch.eye(n) - torch.roll(torch.eye(n), 1, 0)  # A is a cyclic shift, the worst case for GMRES
    g = torch.eye(n)[:1]
    for steps, done in ((n - 1, False), (n, True)):
        solution = solve(system(F[None], g, False), rs.GMRES(), rs.Stopping(max_steps=steps), torch.zeros_like(g))
        assert bool(solution.converged) is done
    assert (solution.value - torch.linalg.solve(torch.eye(n) - F, g[0])).abs().max() < 1e-13


def test_gmres_residual_decreases_monotonically_and_restarts_cost_steps() -> None:
    F, g = 3 * torch.randn(1, 12, 12) / 12**0.5 - 3 * torch.eye(12), torch.randn(1, 12)
    norms = [
        solve(system(F, g, False), rs.GMRES(), rs.Stopping(max_steps=k), torch.zeros_like(g)).residual.item()
        for k in range(1, 12)
    ]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(norms))
    full = solve(system(F, g, False), rs.GMRES(restart=12), rs.Stopping(), torch.zeros_like(g))
    restarted = solve(system(F, g, False), rs.GMRES(restart=4), rs.Stopping(), torch.zeros_like(g))
    assert full.converged.all()
    assert restarted.converged.all()
    assert full.steps.item() <= 12 < restarted.steps.item()


def test_a_residual_from_a_recurrence_is_not_believed() -> None:
    """In single precision with entries over six decades, the Krylov methods' own residual runs ahead of the truth."""
    rates = torch.logspace(0, 6, 12, dtype=torch.float32)
    q = torch.linalg.qr(torch.randn(12, 12)).Q.float()
    F = (-q @ torch.diag(rates) @ q.T)[None]
    g = torch.randn(1, 12, dtype=torch.float32)
    for method in (rs.GMRES(), rs.BiCGStab()):
        solution = solve(system(F, g, True), method, rs.Stopping(), torch.zeros_like(g))
        A, u = torch.eye(12).double() - F[0].double().T, solution.value[0].double()
        true = (g[0].double() - A @ u).norm() / 12**0.5
        tolerance = 1e-6 * torch.maximum(g.norm(), u.norm()) / 12**0.5
        # Or at the rounding of the terms, below which no method gets.
        rounding = 8 * torch.finfo(torch.float32).eps * (A.norm() * u.norm() + g.norm()) / 12**0.5
        tolerance = torch.maximum(tolerance, rounding)
        assert bool(true <= 2 * tolerance) or not bool(solution.converged)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("method", [rs.GMRES, rs.BiCGStab])
def test_a_preconditioner_is_transposed_with_the_system(method: type[rs.GMRES], transposed: bool) -> None:
    """With the exact inverse as preconditioner one step is enough, in both directions."""
    A = 3 * torch.eye(8) + torch.randn(8, 8)
    inverse = torch.linalg.inv(A)
    g = torch.randn(4, 8)
    exact = method(preconditioner=lambda r: r @ inverse.T)
    solution = solve(system((torch.eye(8) - A)[None], g, transposed), exact, rs.Stopping(), torch.zeros_like(g))
    assert solution.steps.max() == 1
    assert (solution.value - torch.linalg.solve(A.T if transposed else A, g.T).T).abs().max() < 1e-12


def test_a_preconditioner_through_resolve_and_torch_func() -> None:
    W = -5 * torch.eye(6) + 0.3 * torch.randn(6, 6)
    inverse = torch.linalg.inv(torch.eye(6) - W)
    seen: list[rs.Solution] = []
    adjoint = rs.ImplicitAdjoint(rs.GMRES(preconditioner=lambda r: r @ inverse.T), callback=seen.append)

    def total(b: Tensor) -> Tensor:
        return rs.resolve(lambda w: w @ W.T, b, 1.0, adjoint=adjoint).value.sum()

    b = torch.randn(2, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(total(b), b)
    assert seen[0].steps.max() == 1
    assert (torch.func.grad(total)(b.detach()) - gradient).abs().max() < 1e-12


def test_the_linear_part_preconditions_for_nothing() -> None:
    F, g = contraction(n=40, batch=2) - 1e4 * torch.eye(40), torch.randn(2, 40)
    for method in (rs.GMRES(), rs.BiCGStab(), rs.Neumann()):
        helped = solve(system(F, g, True, linear_part=-1e4), method, rs.Stopping(), torch.zeros_like(g))
        assert helped.converged.all()
        assert helped.steps.max() <= 3


def test_neumann_converges_at_the_rate_of_the_contraction() -> None:
    """For a rotation times `rate` the residual after k terms is exactly rate^k that of none."""
    q = torch.linalg.qr(torch.randn(5, 5)).Q
    g = torch.randn(1, 5)
    for rate in (0.1, 0.5, 0.9):
        stopping = rs.Stopping(max_steps=6)
        solution = solve(system((rate * q)[None], g, True), rs.Neumann(), stopping, torch.zeros_like(g))
        # The first term is g itself, with the residual rate * g.
        assert abs(solution.residual.item() / (rate**6 * g.norm().item() / 5**0.5) - 1) < 1e-9


def test_the_factors_serve_the_matrix_and_its_transpose() -> None:
    F, g = contraction(), torch.randn(3, 7)
    forward = system(F, g, False)
    backward = LinearProblem(g, forward.linearization, True)
    for problem, A in ((forward, torch.eye(7) - F), (backward, (torch.eye(7) - F).mT)):
        solution = solve(problem, rs.DenseLU(), rs.Stopping(), torch.zeros_like(g))
        assert (solution.value - torch.linalg.solve(A, g)).abs().max() < 1e-12
    assert forward.linearization.work.vjps == 7  # assembled once


def test_the_default_for_many_unknowns_falls_back_on_gmres() -> None:
    """A rotation by large angles: no fixed point contracts, and a short memory does not see all of its frequencies."""
    frequencies = torch.linspace(2.0, 9.0, 8).repeat(5)
    blocks = [torch.tensor([[0.0, -w], [w, 0.0]]) for w in frequencies.tolist()]
    K, b, c = torch.block_diag(*blocks), torch.randn(3, 80, requires_grad=True), torch.randn(3, 80)
    seen: list[rs.Solution] = []
    solution = rs.resolve(lambda w: w @ K.T, b, 1.0, adjoint=rs.ImplicitAdjoint(callback=seen.append))
    (gradient,) = torch.autograd.grad((c * solution.value).sum(), b)
    torch.testing.assert_close(gradient, torch.linalg.solve(torch.eye(80) - K.T, c.T).T, atol=1e-6, rtol=1e-6)
    assert isinstance(seen[0].solvers[-1], rs.GMRES)
    assert seen[0].converged.all()
