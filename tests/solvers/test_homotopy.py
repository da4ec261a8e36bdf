"""Branches of solutions with folds, followed by arc length."""

import pytest
import torch

import resolvent as rs
from resolvent.solvers import Homotopy
from seeding import shifted

# w = b + 2w - w^3 is w^3 - w = b, which has one solution for |b| > 0.385.
B = 0.4


def cubic(w):
    return 2 * w - w**3


def root():
    """The real root of w^3 - w - b, as Cardano has it."""
    half = (B**2 / 4 - 1 / 27) ** 0.5
    return (B / 2 + half) ** (1 / 3) + (B / 2 - half) ** (1 / 3)


def test_the_only_solution_is_found_from_any_guess():
    for start in (-2.0, -0.577, 0.4, 3.0):
        found = rs.resolve(cubic, torch.tensor([[B]]), 1.0, w0=torch.tensor([[start]]), solver=Homotopy())
        assert found.value.item() == pytest.approx(root(), abs=1e-8)


def test_a_fold_is_passed_and_the_gradient_is_right():
    """The branch of w = b + 4 s sin(3 w) has to pass where 12 s cos(3 w) = 1."""
    b = torch.tensor([[-3.0]], requires_grad=True)
    found = rs.resolve(lambda w: torch.sin(3 * w), b, 4.0, solver=Homotopy())
    w = found.value.detach()
    torch.testing.assert_close(w, b.detach() + 4 * torch.sin(3 * w), rtol=0, atol=1e-7)
    (slope,) = torch.autograd.grad(found.value.sum(), b)
    torch.testing.assert_close(slope, 1 / (1 - 12 * torch.cos(3 * w)), rtol=1e-5, atol=0)


def test_bounded_fields_are_almost_always_solved():
    """Almost every branch leads to s = 1. A step may still end on another one: about one in 600 here."""
    torch.manual_seed(shifted(0))
    W = 4 * torch.randn(200, 5, 5)
    b = torch.randn(200, 5)

    def field(w):
        return torch.tanh((W @ w[:, :, None]).squeeze(2))

    found = rs.resolve(field, b, 1.0, solver=Homotopy(), on_failure="ignore")
    assert int((~found.converged).sum()) <= 3


def test_a_sample_does_not_depend_on_the_others():
    b = torch.tensor([[B], [2.0], [-B], [0.0]])
    together = rs.resolve(cubic, b, 1.0, solver=Homotopy()).value
    alone = torch.cat([rs.resolve(cubic, row[None], 1.0, solver=Homotopy()).value for row in b])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_a_branch_without_end_fails_loudly():
    """w = 1 + s w^2 has no solution beyond s = 1/4, and the branch runs away to infinity on its way back."""
    with pytest.raises(rs.ConvergenceError, match="did not converge"):
        rs.resolve(torch.square, torch.ones(1, 1), 1.0, solver=Homotopy())
