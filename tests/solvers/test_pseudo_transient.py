"""Equations in whose way there is a fold."""

import pytest
import torch

import resolvent as rs

PATIENT = rs.Stopping(patience=500)

# w = b + 2w - w^3 is w^3 - w = b, which has one solution for |b| > 0.385, the value at the fold in w = 0.577.
B = 0.4


def cubic(w):
    return 2 * w - w**3


def solution():
    """The real root of w^3 - w - b, as Cardano has it."""
    half = torch.tensor((B**2 / 4 - 1 / 27) ** 0.5)
    return (B / 2 + half) ** (1 / 3) + (B / 2 - half) ** (1 / 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [-2.0, -0.577, 0.4, 3.0])
def test_the_flow_passes_the_fold_in_which_a_falling_residual_is_caught(start, dtype):
    b, w0 = torch.tensor([[B]], dtype=dtype), torch.tensor([[start]], dtype=dtype)
    found = rs.resolve(cubic, b, 1.0, w0=w0, solver=rs.PseudoTransient(), stopping=PATIENT)
    tolerance = {torch.float32: 3e-6, torch.float64: 1e-8}[dtype]
    torch.testing.assert_close(found.value.double(), solution().double()[None, None], rtol=0, atol=tolerance)


def test_methods_that_lower_the_residual_are_caught():
    for solver in (rs.Newton(), rs.LBFGS()):
        with pytest.raises(rs.ConvergenceError, match="did not converge"):
            rs.resolve(cubic, torch.tensor([[B]]), 1.0, w0=torch.tensor([[-2.0]]), solver=solver)


def test_the_default_falls_back_on_homotopy():
    found = rs.resolve(cubic, torch.tensor([[B]]), 1.0, w0=torch.tensor([[-2.0]]))
    torch.testing.assert_close(found.value, solution()[None, None].to(found.value), rtol=0, atol=1e-8)
    assert isinstance(found.solvers[-1], rs.solvers.Homotopy)


def test_the_default_falls_back_on_it_where_unknowns_are_many():
    """130 equations of which one has a fold: too many unknowns for the arc length."""
    b = torch.full((1, 130), 3.0)
    b[0, 7] = B
    guess = torch.full((1, 130), 1.7)
    guess[0, 7] = -2.0
    found = rs.resolve(cubic, b, 1.0, w0=guess)
    torch.testing.assert_close(found.value[0, 7], solution().to(found.value), rtol=0, atol=1e-7)
    assert isinstance(found.solvers[-1], rs.PseudoTransient)


def test_it_is_newton_s_method_where_that_converges():
    b = torch.randn(5, 3)
    solvers = (rs.Fallback((rs.Newton(), rs.PseudoTransient())), rs.Newton())
    found, newton = (rs.resolve(torch.tanh, b, 0.5, solver=solver, stopping=PATIENT) for solver in solvers)
    torch.testing.assert_close(found.value, newton.value, rtol=0, atol=0)
    assert bool((found.solver_index == 0).all())


def test_a_sample_does_not_depend_on_the_others():
    b, w0 = torch.tensor([[B], [2.0], [-B]]), torch.tensor([[-2.0], [0.0], [2.0]])

    def solve(b, w0):
        return rs.resolve(cubic, b, 1.0, w0=w0, solver=rs.PseudoTransient(), stopping=PATIENT).value

    alone = torch.cat([solve(b[i : i + 1], w0[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(solve(b, w0), alone, rtol=0, atol=1e-13)


def test_a_block_finds_layers_behind_a_fold_by_itself():
    field = rs.Autonomous(_Cubic(), rowwise=True)
    trajectory = rs.ThetaBlock(field, 1.0, 1, 1.0).trajectory(torch.tensor([[B]]))
    torch.testing.assert_close(trajectory.states[-1], solution()[None, None], rtol=0, atol=1e-8)
    assert [type(solve.solvers[int(solve.solver_index)]) for solve in trajectory.solutions] == [rs.solvers.Homotopy]


class _Cubic(torch.nn.Module):
    def forward(self, w):
        return cubic(w)
