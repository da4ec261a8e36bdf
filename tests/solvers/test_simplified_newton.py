"""Newton's method with matrices that are kept."""

import pytest
import torch

import resolvent as rs
from resolvent.solvers.simplified_newton import SimplifiedNewton

STOPPING = rs.Stopping(rtol=1e-10)


def problem(batch: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 3), torch.randn(batch, 3)


@pytest.mark.parametrize("rtol", [0.0, 1e-10])
@pytest.mark.parametrize("rowwise", [True, False])
def test_finds_the_solution_and_its_gradient(rtol: float, rowwise: bool) -> None:
    W, b = problem()
    b.requires_grad_()
    F = (lambda w: torch.tanh(w @ W)) if not rowwise else rs.Rowwise(lambda w: torch.tanh(w @ W))
    found = [
        rs.resolve(F, b, 0.7, solver=solver, stopping=STOPPING).value
        for solver in (SimplifiedNewton(rtol), rs.Newton())
    ]
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*(torch.autograd.grad(value.sin().sum(), b)[0] for value in found))


def test_without_a_tolerance_the_steps_are_those_of_newton() -> None:
    W, b = problem()
    F = rs.Rowwise(lambda w: torch.tanh(w @ W))
    ours, newton = (
        rs.resolve(F, b, 0.7, solver=solver, stopping=STOPPING) for solver in (SimplifiedNewton(), rs.Newton())
    )
    assert ours.steps.tolist() == newton.steps.tolist()
    torch.testing.assert_close(ours.value, newton.value)


def test_a_good_guess_needs_one_jacobian() -> None:
    W, b = problem()
    F = rs.Rowwise(lambda w: torch.tanh(w @ W))
    exact = rs.resolve(F, b, 0.7, solver=rs.Newton(), stopping=rs.Stopping(rtol=1e-13)).value
    with torch.no_grad():
        ours = rs.resolve(F, b, 0.7, exact + 1e-5, solver=SimplifiedNewton(1e-10), stopping=STOPPING)
    assert ours.all_converged
    assert ours.vjps == 1


def test_a_sample_does_not_depend_on_the_others() -> None:
    W, b = problem(9)
    F = rs.Rowwise(lambda w: torch.sin(4 * w @ W))
    options = {"solver": SimplifiedNewton(1e-10), "stopping": STOPPING, "on_failure": "ignore"}
    whole = rs.resolve(F, b, 0.7, **options)
    for n in range(9):
        alone = rs.resolve(F, b[n : n + 1], 0.7, **options)
        assert alone.status[0] == whole.status[n]
        if bool(alone.all_converged):
            torch.testing.assert_close(alone.value[0], whole.value[n], atol=1e-8, rtol=1e-8)
            assert abs(int(alone.steps[0]) - int(whole.steps[n])) <= 1
