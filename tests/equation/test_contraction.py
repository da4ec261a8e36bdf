"""The quick fixed point of the default plan: which samples it keeps, and what it promises."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from seeding import shifted


def rates(*values: float, unknowns: int = 20) -> Tensor:
    """Diagonal slopes, one row per sample."""
    return torch.tensor(values)[:, None] * torch.linspace(0.5, 1.0, unknowns)


def test_quick_samples_are_kept_and_slow_ones_passed_on() -> None:
    slopes = rates(0.1, 0.3, -1.5, -50.0)
    b = torch.randn(4, 20)
    solution = rs.resolve(rs.Rowwise(lambda w, c: c * w, slopes), b, 1.0)
    names = [type(solution.solvers[i]).__name__ for i in solution.solver_index.tolist()]
    assert names == ["Picard", "Picard", "Picard", "Newton"]
    # Plain steps of the third one do not contract.
    assert solution.steps[2] < 20
    torch.testing.assert_close(solution.value, b / (1 - slopes), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("unknowns", [5, 20, 40, 200])
def test_a_sample_does_not_depend_on_the_others(unknowns: int) -> None:
    torch.manual_seed(shifted(3))
    weights = torch.randn(unknowns, unknowns) / unknowns**0.5
    scales = torch.tensor([0.05, 0.2, 0.6, 1.5])[:, None]
    b = torch.randn(4, unknowns)

    def solve(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        start = b[rows].clone().requires_grad_()
        function = rs.Rowwise(lambda w, s: s * torch.tanh(w @ weights), scales[rows])
        solution = rs.resolve(function, start, 1.0)
        solution.value.square().sum().backward()
        assert start.grad is not None
        return solution.value.detach(), start.grad, solution.steps

    values, gradients, steps = solve(slice(None))
    for n in range(4):
        value, gradient, own = solve(slice(n, n + 1))
        torch.testing.assert_close(value[0], values[n], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradient[0], gradients[n], rtol=1e-11, atol=1e-11)
        assert own.item() == steps[n].item()


def test_finished_samples_are_not_evaluated_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(shifted(4))
    slopes, b = rates(0.01, 0.02, 0.01, 0.35, 0.2, 0.02, 0.01), torch.randn(7, 20)
    rows: list[int] = []

    def field(w: Tensor, c: Tensor) -> Tensor:
        rows.append(len(w))
        return c * torch.sin(w)

    with torch.no_grad():
        whole = rs.resolve(rs.Rowwise(field, slopes), b, 1.0)
        assert set(rows) == {7}
        rows.clear()
        monkeypatch.setattr("resolvent.equation.contraction.MIN_SIZE_TO_COMPACT", 1)
        part = rs.resolve(rs.Rowwise(field, slopes), b, 1.0)
    assert rows[0] == 7
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] == 1
    torch.testing.assert_close(part.value, whole.value, rtol=1e-14, atol=1e-14)
    assert torch.equal(part.steps, whole.steps)
    torch.testing.assert_close(part.residual, whole.residual, rtol=1e-3, atol=1e-16)


def test_an_equilibrium_stops_at_the_tolerance_of_its_own_size() -> None:
    """Without b the tolerance is relative to the solution, whatever the absolute one."""
    torch.manual_seed(shifted(5))
    weights, x = torch.randn(40, 40) / 40**0.5, 100 * torch.randn(6, 40)
    loose = rs.Stopping(rtol=1e-3, atol=1e-14)
    layer = rs.Equilibrium(lambda z, x: 10 * torch.tanh(0.03 * z @ weights) + x, stopping=loose)
    with torch.no_grad():
        solution = layer.solution(x)
    assert (solution.residual <= 1e-3 * solution.value.square().mean(1).sqrt()).all()
    assert solution.steps.max() <= 5
    assert type(solution.solvers[-1]).__name__ == "Picard"


@pytest.mark.parametrize("unknowns", [20, 300])
def test_slow_samples_are_accelerated(unknowns: int) -> None:
    """A factor of 0.65 would take 49 steps of the plain fixed point, and 0.6 takes 41."""
    slopes = torch.cat([rates(0.6, unknowns=unknowns), rates(0.65, unknowns=unknowns).fill_(0.65)])
    b = torch.randn(2, unknowns)
    solution = rs.resolve(rs.Rowwise(lambda w, c: c * w, slopes), b, 1.0)
    assert [type(solver).__name__ for solver in solution.solvers] == ["Picard"]
    assert solution.evaluations <= 25
    torch.testing.assert_close(solution.value, b / (1 - slopes), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("theta", [0.5, 1.0])
@pytest.mark.parametrize("unknowns", [12, 40, 100])
def test_layers_that_contract_slowly_together_stay_together(unknowns: int, theta: float) -> None:
    """The first steps of a group hardly reduce its residual: later layers wait for the earlier ones."""
    torch.manual_seed(shifted(6))
    weights, x = torch.randn(unknowns, unknowns) / unknowns**0.5, torch.randn(9, unknowns, requires_grad=True)
    field = rs.Autonomous(nn.Sequential(nn.Linear(unknowns, unknowns), nn.Tanh(), nn.Linear(unknowns, unknowns)))
    with torch.no_grad():
        field.module[0].weight.copy_(0.8 * weights)
        field.module[2].weight.copy_(0.8 * weights.t())
    backward: list[rs.Solution] = []
    adjoint = rs.ImplicitAdjoint(callback=backward.append)
    states = {}
    for mode in ("auto", "sequential"):
        x.grad = None
        trajectory = rs.ThetaBlock(field, theta, 4, 1.0, mode=mode, adjoint=adjoint).trajectory(x)
        trajectory.states[-1].square().sum().backward()
        states[mode] = trajectory.states.detach(), x.grad
        if mode == "auto":
            (solution,) = (*trajectory.solutions,)
            assert [type(solver).__name__ for solver in solution.solvers] == ["Picard"]
            assert [[type(solver).__name__ for solver in system.solvers] for system in backward] == [["Picard"]]
            assert solution.steps.max() > 8
    for together, in_turn in zip(*states.values(), strict=True):
        assert (together - in_turn).norm() < 1e-7 * in_turn.norm()


def test_what_is_not_finite_is_not_converged() -> None:
    slopes = rates(0.1, 0.1, 0.1)
    slopes[1, 4] = torch.nan
    function = rs.Rowwise(lambda w, c: c * w.sin(), slopes)
    solution = rs.resolve(function, torch.randn(3, 20), 1.0, on_failure="ignore")
    assert solution.converged.tolist() == [True, False, True]
    assert solution.status[1] == rs.Status.NON_FINITE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("theta", [0.5, 0.8, 1.0])
def test_layers_solved_together_satisfy_each_equation(theta: float, dtype: torch.dtype) -> None:
    """For 24 unknowns layers are solved in groups: the equation of every layer must hold to the tolerance."""
    torch.manual_seed(shifted(1))
    net = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 24)).to(dtype)
    block = rs.ThetaBlock(rs.Autonomous(net), theta, num_steps=6, horizon=1.5)
    x = torch.randn(7, 24, dtype=dtype)
    trajectory = block.trajectory(x)
    assert len(trajectory.solutions) == 1
    states, exact = trajectory.states.detach().double(), net.double()
    starts, ends = states[:-1], states[1:]
    defect = ends - starts - 0.25 * exact((1 - theta) * starts + theta * ends)
    size = torch.maximum(starts.norm(dim=-1), ends.norm(dim=-1))
    rtol = {torch.float32: 1e-6, torch.float64: 1e-9}[dtype]
    assert (defect.norm(dim=-1) / size).max() < 2 * rtol


def test_a_stiff_sample_among_others_is_solved_layer_by_layer() -> None:
    torch.manual_seed(shifted(2))

    class Decay(rs.fields.Field):
        rowwise = True
        autonomous = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return torch.where(y[:, :1] > 0, -0.5, -30.0) * y

    x = torch.rand(3, 24) + 0.1
    x[1] = -x[1]
    x.requires_grad_()
    block = rs.ThetaBlock(Decay(), 1.0, num_steps=4, horizon=1.0)
    y = block(x)
    exact = x.detach() / (1 - 0.25 * torch.tensor([-0.5, -30.0, -0.5])[:, None]) ** 4
    torch.testing.assert_close(y.detach(), exact, rtol=1e-7, atol=1e-9)
    y.sum().backward()
    torch.testing.assert_close(x.grad, exact / x.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_sample_that_runs_away_is_not_called_solved(dtype: torch.dtype) -> None:
    """w = b + |w| has no solution for b > 0. Far away its residual vanishes in rounding."""
    torch.manual_seed(shifted(6))
    b = torch.randn(32, 33, dtype=dtype).exp()
    b[1] *= -1  # Here w = b / 2.
    solution = rs.resolve(rs.Rowwise(torch.abs), b, 1.0, on_failure="ignore")
    assert solution.converged.nonzero().tolist() == [[1]]
    torch.testing.assert_close(solution.value[1], b[1] / 2)
