"""Acceleration of slow samples: what it promises for linear and nonlinear fixed points, sample by sample."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.equation.acceleration import Acceleration
from seeding import shifted


def iterate(matrix: Tensor, b: Tensor, steps: int, memory: int, plain: int = 0) -> list[float]:
    """The relative residuals of w = b + w A after every step; the first ones are plain."""
    acceleration, w, found = Acceleration(memory), b, []
    everyone = torch.ones(len(b), dtype=torch.bool)
    for step in range(steps):
        image = b + w @ matrix
        found.append(float((image - w).norm() / b.norm()))
        if step < plain:
            acceleration.note(w, image)
            w = image
        else:
            w = acceleration.next(w, image, everyone)
    return found


@pytest.mark.parametrize("plain", [0, 1, 3])
def test_a_linear_equation_is_solved_in_as_many_steps_as_it_has_unknowns(plain: int) -> None:
    torch.manual_seed(shifted(0))
    matrix = 3 * torch.randn(6, 6) / 6**0.5
    residuals = iterate(matrix, torch.randn(4, 6), plain + 10, memory=6, plain=plain)
    assert max(residuals[: plain + 3]) > 1e-3
    assert residuals[-1] < 1e-9


def test_changes_of_very_different_sizes_are_all_used() -> None:
    """Without their scales, a residual that has fallen by eight orders of magnitude would be lost beside the first
    changes."""
    torch.manual_seed(shifted(1))
    values = torch.linspace(-4.0, -1.0, 16)
    turn = torch.linalg.qr(torch.randn(16, 16))[0]
    residuals = iterate(turn @ torch.diag(values) @ turn.T, torch.randn(3, 16), 20, memory=16)
    assert residuals[-1] < 1e-9


def test_samples_that_are_not_chosen_make_plain_steps() -> None:
    torch.manual_seed(shifted(2))
    matrix, b = torch.randn(5, 5) / 5, torch.randn(3, 5)
    acceleration, w = Acceleration(4), b
    chosen = torch.tensor([True, False, True])
    for _ in range(5):
        image = b + torch.tanh(w @ matrix)
        w = acceleration.next(w, image, chosen)
        assert torch.equal(w[1], image[1])
    assert not torch.equal(w[0], image[0])


def test_a_sample_that_rests_or_is_lost_leaves_the_others_alone() -> None:
    torch.manual_seed(shifted(3))
    matrix, b = 2 * torch.randn(5, 5) / 5**0.5, torch.randn(4, 5)
    everyone = torch.ones(4, dtype=torch.bool)

    def run(start: Tensor) -> Tensor:
        acceleration, w = Acceleration(5), start
        for _ in range(9):
            w = acceleration.next(w, start + w @ matrix, everyone)
        return w

    exact = torch.linalg.solve(torch.eye(5) - matrix.T, b.T).T
    others = b.clone()
    others[1], others[2] = 0.0, torch.nan  # The first is at its solution from the beginning.
    found = run(others)
    torch.testing.assert_close(found[[0, 3]], exact[[0, 3]], rtol=1e-8, atol=1e-8)
    assert (found[1] == 0).all()


@pytest.mark.parametrize("unknowns", [20, 40, 300, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_default_solves_decaying_fields_of_any_stiffness_quickly(unknowns: int, dtype: torch.dtype) -> None:
    """A field that pulls to zero does not contract in plain steps. Such samples must not need a general method, and
    gradients are exact."""
    torch.manual_seed(shifted(4))
    weights = torch.randn(unknowns, unknowns, dtype=dtype) / unknowns**0.5
    b = torch.randn(3, unknowns, dtype=dtype, requires_grad=True)
    rates = torch.tensor([[0.5], [1.5], [4.0]], dtype=dtype)
    seen: list[rs.Solution] = []

    def solve(stopping: rs.Stopping) -> tuple[rs.Solution, Tensor]:
        function = rs.Rowwise(lambda w, rate: -rate * w + 0.3 * torch.tanh(w @ weights), rates)
        found = rs.resolve(function, b, 1.0, stopping=stopping, adjoint=rs.ImplicitAdjoint(callback=seen.append))
        return found, torch.autograd.grad(found.value.square().sum(), b)[0]

    solution, gradient = solve(rs.Stopping(rtol=1e-5, atol=0.0))
    assert [type(solver) for solver in (*solution.solvers, *seen[-1].solvers)] == [rs.Picard, rs.Picard]
    assert solution.steps.max() < 30
    exact, right = solve(rs.Stopping(rtol=100 * torch.finfo(dtype).eps, atol=0.0))
    torch.testing.assert_close(solution.value, exact.value, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-3)


def test_a_slow_sample_does_not_depend_on_quick_ones() -> None:
    torch.manual_seed(shifted(5))
    weights, b = torch.randn(50, 50) / 50**0.5, torch.randn(5, 50)
    rates = torch.tensor([0.05, 2.0, 0.3, 0.9, 5.0])[:, None]

    def solve(rows: slice) -> rs.Solution:
        return rs.resolve(rs.Rowwise(lambda w, r: -r * w + 0.1 * torch.tanh(w @ weights), rates[rows]), b[rows], 1.0)

    together = solve(slice(None))
    for n in range(5):
        alone = solve(slice(n, n + 1))
        torch.testing.assert_close(alone.value[0], together.value[n], rtol=1e-11, atol=1e-11)
        assert alone.steps.item() == together.steps[n].item()
