"""A sample's answer does not depend on its batch-mates, and F is the same function throughout a solve."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from manufactured import SOLVERS
from resolvent.extending import Solver


def stiffness(batch: int) -> Tensor:
    """Samples that need very different numbers of steps."""
    return torch.linspace(0.0, 2.0, batch)[:, None]


def field(w: Tensor, k: Tensor, W: Tensor) -> Tensor:
    return -k * w + torch.tanh(w @ W)


def turn(scale: float) -> Tensor:
    """A matrix whose singular values are all the same, so that no draw makes a problem harder than another."""
    return scale * torch.linalg.qr(torch.randn(4, 4)).Q


def assert_same_steps(a: Tensor, b: Tensor) -> None:
    """Up to a few: a product of matrices may be rounded otherwise with another number of rows. The samples of a batch
    here need numbers of steps that differ by much more."""
    assert ((a - b).abs() <= 1 + 0.1 * b).all()


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_value_gradient_and_steps_of_a_sample_alone_and_in_company(solver: Solver) -> None:
    W = turn(0.8)
    b, k = torch.randn(6, 4), stiffness(6)
    stopping = rs.Stopping(rtol=1e-8, atol=1e-8)
    # Two solutions within the tolerance differ by as much, times the inverse of I - tau F'; gradients have it twice.
    inverse = 1 / (1 - 0.7 * 0.8)
    within = 4 * 1e-8 * (1 + 2 * b.norm(dim=1).amax()) * inverse

    def run(rows: slice | list[int]) -> tuple[rs.Solution, Tensor]:
        leaf = b[rows].clone().requires_grad_()
        condition = k[rows]
        solution = rs.resolve(
            lambda w: field(w, condition, W), leaf, 0.7, solver=solver, stopping=stopping, on_failure="ignore"
        )
        (gradient,) = torch.autograd.grad(solution.value.cos().sum(), leaf)
        return solution, gradient

    together, gradients = run(slice(None))
    assert together.converged[0]
    for rows in (*([i] for i in range(6)), [5, 2, 0, 4, 1, 3]):
        again, gradient = run(rows)
        solved = together.converged[rows]
        assert torch.equal(again.converged, solved)
        assert_same_steps(again.steps[solved], together.steps[rows][solved])
        assert ((again.value - together.value[rows])[solved].abs() <= within).all()
        assert ((gradient - gradients[rows])[solved].abs() <= 4 * inverse * within).all()


@pytest.mark.parametrize("linear", [rs.DenseLU(), rs.GMRES(restart=3), rs.BiCGStab(), rs.Neumann()], ids=str)
def test_backward_steps_do_not_depend_on_company(linear: Solver) -> None:
    W, b, k = turn(0.8), torch.randn(5, 4), 0.5 * stiffness(5)
    seen: list[rs.Solution] = []
    adjoint = rs.ImplicitAdjoint(linear, callback=seen.append)
    for rows in (slice(None), *([i] for i in range(5))):
        leaf = b[rows].clone().requires_grad_()
        rs.resolve(lambda w, c=k[rows]: field(w, c, W), leaf, 0.5, adjoint=adjoint).value.sum().backward()
    together, *alone = seen
    assert_same_steps(together.steps, torch.cat([solution.steps for solution in alone]))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_dropping_finished_samples_changes_nothing(solver: Solver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.equation.loop.MIN_SIZE_TO_COMPACT", 1)
    W, b, k = turn(0.2), torch.randn(8, 4), 0.3 * stiffness(8)
    tau = torch.linspace(0.1, 0.9, 8)
    stopping = rs.Stopping(rtol=1e-8, atol=1e-8)
    rows: list[int] = []

    def counted(w: Tensor, k: Tensor) -> Tensor:
        rows.append(len(w))
        return field(w, k, W)

    with torch.no_grad():  # With a graph to build, F is evaluated for all samples at the solution.
        whole = rs.resolve(lambda w: counted(w, k), b, tau, solver=solver, stopping=stopping)
        most = sum(rows)
        rows.clear()
        dropped = rs.resolve(rs.Rowwise(counted, k), b, tau, solver=solver, stopping=stopping)
    # Two solutions within the tolerance, times the inverse of I - tau F'.
    within = 4 * 1e-8 * (1 + 2 * b.norm(dim=1).amax()) / (1 - 0.9 * 0.2)
    assert (dropped.value - whole.value).abs().max() <= within
    assert_same_steps(dropped.steps, whole.steps)
    assert torch.equal(dropped.status, whole.status)
    repeats_rows = rs.Newton | rs.Auto | rs.solvers.Chord | rs.NewtonKrylov
    if not isinstance(solver, repeats_rows):
        assert sum(rows) < most
        assert min(rows) < 8


def test_dropping_pays_on_a_large_batch() -> None:
    rows: list[int] = []

    def counted(w: Tensor, k: Tensor) -> Tensor:
        rows.append(len(w))
        return torch.cos(w) * k

    k = torch.full((20000, 1), 0.1)
    k[::100] = 0.95
    solution = rs.resolve(rs.Rowwise(counted, k), torch.zeros(20000, 1), 1.0, solver=rs.Picard())
    assert rows[0] == 20000
    assert rows[-2] == 200  # the last call attaches the gradient, for everybody
    assert sum(rows) < 0.4 * solution.evaluations * 20000


def test_a_plain_callable_always_sees_the_whole_batch() -> None:
    k = stiffness(2000).expand(-1, 10)

    def F(w: Tensor) -> Tensor:
        assert w.shape == k.shape
        return -k * w

    for solver in (rs.Newton(), rs.Anderson(), rs.NewtonKrylov()):
        assert rs.resolve(F, torch.randn(2000, 10), 1.0, solver=solver).converged.all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 2, 3)])
def test_any_shape_of_a_sample(shape: tuple[int, ...]) -> None:
    b = torch.randn(4, *shape)
    for solver in SOLVERS:
        solution = rs.resolve(lambda w: 0.5 * torch.sin(w), b, 1.0, solver=solver)
        assert solution.value.shape == b.shape
        assert (solution.value - b - 0.5 * torch.sin(solution.value)).abs().max() < 1e-8
        assert solution.status.shape == solution.residual.shape == solution.steps.shape == (4,)


def test_an_empty_batch() -> None:
    for solver in SOLVERS:
        solution = rs.resolve(torch.tanh, torch.zeros(0, 3, requires_grad=True), 0.5, solver=solver)
        assert solution.value.shape == (0, 3)
        solution.value.sum().backward()


def test_check_interval_changes_no_result() -> None:
    W, b, k = turn(0.2), torch.randn(8, 4), 0.3 * stiffness(8)
    for solver in SOLVERS:
        results = [
            rs.resolve(
                lambda w: field(w, k, W), b, 0.7, solver=solver, stopping=rs.Stopping(1e-8, 1e-8, check_every=every)
            )
            for every in (1, 3, 7)
        ]
        for other in results[1:]:
            assert torch.equal(results[0].value, other.value)
            assert torch.equal(results[0].steps, other.steps)


def test_f_is_the_same_function_before_during_and_after_a_solve() -> None:
    """The parameters and buffers of F, and its training flag, are untouched, forward and backward."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes: set[bool] = set()

    def F(w: Tensor) -> Tensor:
        modes.add(module.training)
        return 0.3 * module(w)

    for solver in SOLVERS:
        b = torch.randn(3, 4, requires_grad=True)
        stopping = rs.Stopping(rtol=1e-7, atol=1e-7)
        rs.resolve(F, b, 0.3, solver=solver, stopping=stopping).value.sum().backward()
    assert modes == {True}
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("solver", [rs.solvers.Chord(), rs.Broyden()], ids=str)
def test_what_was_learned_in_one_solve_serves_the_next(solver: Solver) -> None:
    W, b = torch.randn(12, 12) / 5, torch.randn(3, 12)
    first = rs.resolve(lambda w: torch.tanh(w @ W), b, 1.0, solver=solver)
    fresh = rs.resolve(lambda w: torch.tanh(w @ W), b + 0.01, 1.0, w0=first.value, solver=solver)
    again = rs.resolve(lambda w: torch.tanh(w @ W), b + 0.01, 1.0, w0=first.value, solver=solver, reuse=first)
    assert (again.value - fresh.value).abs().max() < 1e-8
    assert again.evaluations + again.vjps < fresh.evaluations + fresh.vjps
    # of no use to another solver, or for another batch, and no harm either
    other = rs.resolve(lambda w: torch.tanh(w @ W), b[:2], 1.0, solver=solver, reuse=first)
    assert (other.value - first.value[:2]).abs().max() < 1e-8
    assert rs.resolve(lambda w: torch.tanh(w @ W), b, 1.0, solver=rs.Newton(), reuse=first).converged.all()
    assert rs.resolve(lambda w: torch.tanh(w @ W), b, 1.0, solver=rs.Newton()).state is None
