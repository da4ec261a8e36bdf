"""Every solver on every manufactured problem: it finds the solution, or says that it did not."""

import pytest
import torch

import resolvent as rs
from manufactured import PROBLEMS, SOLVERS, Manufactured
from resolvent.extending import Solver

# What must not converge, for a reason of mathematics. Picard's iteration does not contract (with damping 1/2 an
# eigenvalue of -3 becomes one of -1), or by no more than 1e-4 per step. Gradient descent has a thousand steps, and
# needs a number that grows with the squared condition number.
EXPANDING = {"affine, normal", "affine, non-normal", "skew, large tau", "stiff to -1e6", "monotone cubic"}
ILL_CONDITIONED = {"affine, non-normal", "stiff to -1e6", "nearly singular"}
UNSUITED = {
    "Picard": EXPANDING | {"nearly singular"},
    "Picard, damped": EXPANDING - {"affine, non-normal"} | {"nearly singular"},
    "GradientDescent": ILL_CONDITIONED,
    "GradientDescent, momentum": ILL_CONDITIONED,
}
# What rounding decides: methods that learn from differences of iterates, or descend on a square, where the condition
# number is large or F is far from linear. These have to be honest, and may converge or not.
OPEN = {
    "Anderson": {"skew, large tau", "stiff to -1e6", "monotone cubic"},
    "Broyden": {"stiff to -1e6", "monotone cubic"},
    "GradientDescent": {"monotone cubic"},
    "GradientDescent, momentum": {"monotone cubic"},
    "ConjugateGradient": {"stiff to -1e6", "nearly singular"},
    "LBFGS": {"stiff to -1e6"},
}
# With few digits there are more of them.
OPEN_32 = OPEN | {
    "ConjugateGradient": {"affine, non-normal", "stiff to -1e6", "monotone cubic", "nearly singular"},
    "LBFGS": {"stiff to -1e6", "nearly singular"},
}


def name(solver: Solver) -> str:
    kind = type(solver).__name__
    if getattr(solver, "damping", 1.0) != 1.0:
        return f"{kind}, damped"
    return f"{kind}, momentum" if getattr(solver, "momentum", 0.0) else kind


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, id="64"), pytest.param(torch.float32, id="32", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_finds_the_solution_or_says_that_it_did_not(solver: Solver, problem: Manufactured, dtype: torch.dtype) -> None:
    case = problem.build(dtype)
    solution = rs.resolve(case.F, case.b, case.tau, solver=solver, on_failure="ignore")
    value, b = solution.value.double(), case.b.double()
    size = value[0].numel() ** 0.5

    rtol, atol = (1e-9, 1e-10) if dtype == torch.float64 else (1e-6, 1e-7)
    scale = torch.maximum(b.flatten(1).norm(dim=1), value.flatten(1).norm(dim=1)) / size
    tolerance = atol + rtol * scale
    # Evaluated anew in double precision; the difference to what the solver saw is the rounding of one evaluation.
    forces = case.tau * case.F(value)
    residual = (b + forces - value).flatten(1).norm(dim=1) / size
    rounding = 4 * torch.finfo(dtype).eps * (scale + forces.flatten(1).norm(dim=1) / size)
    assert (residual[solution.converged] <= (tolerance + rounding)[solution.converged]).all()
    assert (solution.residual.double() > tolerance - rounding)[~solution.converged].all()

    error = (value - case.solution).flatten(1).norm(dim=1) / size
    # Half of the least singular value allows for the curvature of F between the two points.
    bound = (tolerance + rounding) / (0.5 * case.least_singular_value)
    assert (error[solution.converged] <= bound[solution.converged]).all()

    undecided = OPEN if dtype == torch.float64 else OPEN_32
    if problem.name in UNSUITED.get(name(solver), set()):
        assert not solution.converged.any()
    elif problem.name not in undecided.get(name(solver), set()):
        assert solution.converged.all()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_default_solves_everything(problem: Manufactured) -> None:
    for dtype in (torch.float64, torch.float32):
        case = problem.build(dtype)
        assert rs.resolve(case.F, case.b, case.tau).converged.all()


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_picard_contracts_at_the_rate_of_the_field(rate: float) -> None:
    """For F linear with norm `rate` the ratio of successive residuals is at most that, and reaches it."""
    b = torch.randn(3, 4)
    field = torch.diag(torch.tensor([1.0, 0.5, -0.3, -0.9])) * rate
    norms = [
        rs.resolve(
            lambda w: w @ field, b, 1.0, solver=rs.Picard(), stopping=rs.Stopping(max_steps=k), on_failure="ignore"
        ).residual
        for k in (8, 9)
    ]
    ratio = norms[1] / norms[0]
    assert (ratio <= rate * (1 + 1e-12)).all()
    assert (ratio >= 0.9 * rate).all()


def test_the_linear_part_makes_stiffness_irrelevant() -> None:
    """The paper's F^{alpha,beta} with alpha to -infinity: the linearly implicit fixed point contracts all the same."""
    W = torch.linalg.qr(torch.randn(5, 5)).Q
    for low in (-25.0, -1e3, -1e6):
        c, r = (low + 0.5) / 2, (0.5 - low) / 2

        def F(w: torch.Tensor, c: float = c, r: float = r) -> torch.Tensor:
            return c * w + 0.8 * r * torch.tanh(w @ W)

        declared = rs.Rowwise(F, linear_part=c)
        b = torch.randn(4, 5)
        # The residual starts at about 1e6 and falls by 0.8 per step to 1e-9.
        assert rs.resolve(declared, b, 1.0, solver=rs.Picard()).steps.max() < 170
        with pytest.raises(rs.ConvergenceError, match="diverged"):
            rs.resolve(F, b, 1.0, solver=rs.Picard())


def test_newton_converges_quadratically() -> None:
    b = torch.tensor([[2.0]])
    errors = []
    exact = rs.resolve(torch.sin, b, 0.9, stopping=rs.Stopping(rtol=1e-15, atol=1e-15)).value
    for k in (1, 2, 3):
        stopping = rs.Stopping(rtol=1e-15, atol=1e-15, max_steps=k)
        value = rs.resolve(torch.sin, b, 0.9, solver=rs.Newton(), stopping=stopping, on_failure="ignore").value
        errors.append((value - exact).abs().item())
    assert errors[1] < 2 * errors[0] ** 2
    assert errors[2] < 2 * errors[1] ** 2 + 1e-15


def test_auto_shows_its_choice_and_falls_back_sample_by_sample() -> None:
    for unknowns, method in ((2, rs.Newton), (4, rs.Newton), (20, rs.Picard), (40, rs.Picard)):
        slow = rs.resolve(lambda w: 0.01 * torch.tanh(w) - w, torch.randn(3, unknowns), 0.9)
        assert isinstance(slow.solvers[-1], method)
        assert slow.converged.all()
    # Where the solution is far larger than b, an accelerated sample is not believed.
    for unknowns, method in ((20, rs.Newton), (40, rs.Anderson)):
        far = rs.resolve(lambda w: w + 0.01 * torch.tanh(w), torch.randn(3, unknowns), 0.95)
        assert isinstance(far.solvers[-1], method)
        assert far.converged.all()

    rates = torch.tensor([0.1, 0.9, -2e5])[:, None] * torch.linspace(0.1, 1, 40)
    solution = rs.resolve(lambda w: rates * w, torch.randn(3, 40), 1.0)
    assert [type(s).__name__ for s in solution.solvers] == ["Picard", "Anderson", "Newton"]
    assert solution.solver_index.tolist() == [0, 0, 2]
    assert solution.converged.all()


def test_warm_start_at_the_solution_takes_no_step() -> None:
    b = torch.randn(3, 4)
    for solver in SOLVERS:
        value = rs.resolve(lambda w: 0.5 * torch.tanh(w), b, 1.0).value
        again = rs.resolve(lambda w: 0.5 * torch.tanh(w), b, 1.0, w0=value, solver=solver)
        assert again.steps.tolist() == [0, 0, 0]
        assert torch.equal(again.value, value)


def test_chord_calls_for_fewer_jacobians_than_newton() -> None:
    W = torch.randn(20, 20) / 20
    b = torch.randn(6, 20)
    newton = rs.resolve(lambda w: torch.tanh(w @ W), b, 1.0, solver=rs.Newton())
    chord = rs.resolve(lambda w: torch.tanh(w @ W), b, 1.0, solver=rs.solvers.Chord())
    assert chord.vjps < newton.vjps
    assert (chord.value - newton.value).abs().max() < 1e-8
