"""What a block computes, returns and refuses."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import fields, schemes
from resolvent.blocks import Block, ThetaBlock
from resolvent.errors import ConvergenceWarning
from schemes.catalogue import SCHEMES, Manufactured, slope

GRID = {"num_steps": 6, "horizon": 1.2}


def mlp(dim: int = 3) -> fields.MLP:
    return fields.MLP(dim, 8, 2)


@pytest.mark.parametrize("name", SCHEMES)
def test_block_runs_every_scheme(name: str) -> None:
    """The last state is that of the trajectory, and the trajectory begins with the input."""
    problem, t0 = Manufactured(), torch.linspace(0.0, 1.0, 4)
    x = problem.state(t0)
    block = Block(problem, SCHEMES[name], **GRID)
    trajectory = block.trajectory(x, t0)
    assert trajectory.states.shape == (7, 4, 2)
    assert torch.equal(trajectory.states[0], x)
    assert torch.equal(trajectory.states[-1], block(x, t0))
    torch.testing.assert_close(trajectory.times, t0 + torch.arange(7)[:, None] * 0.2)
    assert all(solution.converged.all() for solution in trajectory.solutions)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("theta", [0.0, 0.4, 1.0])
def test_theta_block_is_a_block_with_the_theta_scheme(theta: float, form: str) -> None:
    field, x = mlp(), torch.randn(5, 3)
    block = ThetaBlock(field, theta, 6, 1.2, form, mode="sequential")
    assert (block.field, block.theta, block.num_steps, block.horizon, block.form) == (field, theta, 6, 1.2, form)
    assert torch.equal(block(x), Block(field, rs.schemes.Theta(theta, form), **GRID)(x))
    assert block.scheme == rs.schemes.Theta(theta, form)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
def test_zero_is_the_residual_network(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with no solver in sight, and with the very graph that a loop would have."""

    def nodes(y: Tensor) -> int:
        stack, seen = [y.grad_fn], set()
        while stack:
            node = stack.pop()
            if node is not None and node not in seen:
                seen.add(node)
                stack += [parent for parent, _ in node.next_functions]
        return len(seen)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("theta = 0 has nothing to solve")

    monkeypatch.setattr("resolvent.schemes.interval.resolve_with", refuse)
    calls = 0

    class Counted(fields.MLP):
        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(t, y)

    field, x = Counted(3, 8, 2), torch.randn(5, 3)
    expected = x
    for _ in range(6):
        expected = expected + 0.25 * field(0.0, expected)
    calls = 0
    block = ThetaBlock(field, 0.0, 6, 1.5, form)
    y = block(x)
    assert torch.equal(y, expected)
    assert calls == 6
    assert nodes(y) == nodes(expected)
    assert block.trajectory(x).solutions == ()


@pytest.mark.parametrize("name", ["midpoint 0.5", "RADAU3", "ADAMS_MOULTON3", "VERLET"])
def test_a_sample_with_its_own_start_is_as_if_alone(name: str) -> None:
    problem, t0 = Manufactured(), torch.tensor([0.0, 0.37, 1.2])
    x = problem.state(t0) + 0.1
    together = Block(problem, SCHEMES[name], **GRID)(x, t0)
    for i, start in enumerate(t0.tolist()):
        alone = Block(problem, SCHEMES[name], **GRID)(x[i : i + 1], start)
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-12, rtol=0)


def test_any_horizon() -> None:
    problem, x = Manufactured(), torch.randn(4, 2)
    there = ThetaBlock(problem, 0.5, 8, 1.6)(x, 0.3)
    back = ThetaBlock(problem, 0.5, 8, -1.6)(there, 1.9)
    torch.testing.assert_close(back, x, atol=1e-8, rtol=0)
    torch.testing.assert_close(ThetaBlock(problem, 0.5, 8, torch.tensor(1.6))(x, 0.3), there, atol=1e-13, rtol=0)


@pytest.mark.parametrize("per_sample", [False, True])
def test_interpolation_is_of_order_four(per_sample: bool) -> None:
    problem = Manufactured()
    t0 = torch.tensor([0.0, 0.4, 0.9]) if per_sample else 0.2
    times = torch.tensor([[0.1], [0.37], [0.81], [1.0]]) + t0 if per_sample else torch.tensor([0.3, 0.57, 1.01, 1.2])
    x = problem.state(t0) if per_sample else problem.state(torch.full((3,), 0.2))
    exact = torch.stack([problem.state(t.expand(3)) for t in times])
    errors = []
    for num_steps in (5, 10, 20):
        block = Block(problem, schemes.RungeKutta(schemes.tableaux.RADAU5), num_steps, 1.0)
        got = block.interpolate(x, times, t0)
        assert got.shape == (4, 3, 2)
        errors.append((got - exact).norm().item())
    assert slope(errors) > 3.7


def test_interpolation_at_grid_points_is_the_trajectory() -> None:
    field, x = mlp(), torch.randn(5, 3)
    block = ThetaBlock(field, 0.5, **GRID)
    trajectory = block.trajectory(x)
    torch.testing.assert_close(block.interpolate(x, trajectory.times), trajectory.states, atol=1e-12, rtol=0)
    torch.testing.assert_close(block.interpolate(x, [0.6]), trajectory.states[3:4], atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match=r"2 of the 3 requested times lie outside .* the first is -0\.1"):
        block.interpolate(x, [-0.1, 0.3, 1.3])


def test_images() -> None:
    field, x = fields.Conv(2), torch.randn(3, 2, 5, 5)
    for scheme in (rs.schemes.Theta(0.5), schemes.RungeKutta(schemes.tableaux.GAUSS4), schemes.BDF2):
        block = Block(field, scheme, 3, 0.3)
        assert block(x).shape == x.shape
        assert block.interpolate(x, [0.05, 0.3]).shape == (2, 3, 2, 5, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"learn_theta": True}, {"memory": "reversible"}, {"memory": "checkpoint"}])
def test_moves_between_dtypes(dtype: torch.dtype, options: dict[str, object]) -> None:
    block = ThetaBlock(mlp(), 0.4, **GRID, **options)
    x = torch.randn(5, 3)
    reference = block(x)
    moved = block.to(dtype)
    for t0 in (0.0, torch.zeros(5), torch.zeros((), dtype=torch.float64)):
        y = moved(x.to(dtype), t0)
        assert y.dtype == dtype
        y.sum().backward()
        torch.testing.assert_close(y.double(), reference, atol=1e-5, rtol=1e-5)
    assert moved.trajectory(x.to(dtype)).times.dtype == dtype


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_moves_between_devices(memory: str) -> None:
    block = ThetaBlock(mlp(), 0.4, **GRID, learn_theta=True, memory=memory)
    x = torch.randn(5, 3)
    reference = block(x)
    y = block.to("cuda")(x.to("cuda"), torch.zeros(5))
    y.sum().backward()
    torch.testing.assert_close(y.cpu(), reference, atol=1e-7, rtol=0)
    assert block.trajectory(x.to("cuda")).times.device.type == "cuda"


def test_meta_device_is_respected() -> None:
    """On a machine without a second device: everything the block owns moves."""
    block = ThetaBlock(mlp(), 0.4, **GRID, learn_theta=True).to("meta")
    assert {parameter.device.type for parameter in block.parameters()} == {"meta"}


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_state_dict_of_explicit_and_implicit_are_the_same(theta: float) -> None:
    """No parameters beside the field's, whatever theta: a residual network loads into the implicit one and back."""
    pieces = [mlp() for _ in range(6)]
    explicit = ThetaBlock(fields.Piecewise(pieces, 1.2), 0.0, **GRID)
    implicit = ThetaBlock(fields.Piecewise([mlp() for _ in range(6)], 1.2), theta, **GRID)
    x = torch.randn(5, 3)
    before = explicit(x)
    assert sum(p.numel() for p in implicit.parameters()) == sum(p.numel() for p in explicit.parameters())
    implicit.load_state_dict(explicit.state_dict())
    for old, new in zip(explicit.parameters(), implicit.parameters(), strict=True):
        assert torch.equal(old, new)
    other = ThetaBlock(fields.Piecewise([mlp() for _ in range(6)], 1.2), 0.0, **GRID)
    other.load_state_dict(implicit.state_dict())
    assert torch.equal(other(x), before)


def test_copies_and_files() -> None:
    block = ThetaBlock(mlp(), 0.4, **GRID, learn_theta=True, memory="checkpoint")
    x = torch.randn(5, 3)
    expected = block(x)
    assert torch.equal(copy.deepcopy(block)(x), expected)
    file = io.BytesIO()
    torch.save(block.state_dict(), file)
    file.seek(0)
    fresh = ThetaBlock(mlp(), 0.9, **GRID, learn_theta=True, mode="sequential")
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(fresh(x), expected)
    assert "raw_theta" in block.state_dict()
    assert "theta=0.4" in repr(block)


def test_any_module_is_a_field() -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(5, 3)
    y = ThetaBlock(fields.Autonomous(module), 1.0, 1, 1.0)(x)
    torch.testing.assert_close(y, x + module(y), atol=1e-8, rtol=0)


@pytest.mark.parametrize("scheme", [rs.schemes.Theta(0.5), schemes.RungeKutta(schemes.tableaux.RADAU3), schemes.BDF2])
def test_field_that_is_not_rowwise_sees_the_whole_batch(scheme: object) -> None:
    condition = torch.randn(5, 3)
    sizes = set()

    def field(t: float | Tensor, y: Tensor) -> Tensor:
        sizes.add(len(y))
        return torch.tanh(condition - y)

    Block(field, scheme, 3)(torch.randn(5, 3), torch.linspace(0.0, 1.0, 5))
    assert sizes == {5}


def test_linear_part_reaches_the_solver() -> None:
    """Picard on a stiff field converges only with the linear part on the left."""

    class Stiff(fields.Field):
        rowwise = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return -50 * y + torch.sin(y)

        @property
        def linear_part(self) -> float:
            return self.declared

    field, x = Stiff(), torch.randn(4, 3)
    block = ThetaBlock(field, 0.5, 5, 1.0, solver=rs.Picard())
    field.declared = -50.0
    for field.rowwise in (True, False):
        assert block(x).isfinite().all()
    field.declared = None
    with pytest.raises(rs.ConvergenceError):
        block(x)


def test_failures_follow_the_policy() -> None:
    options = {"solver": rs.Picard(), "stopping": rs.Stopping(max_steps=2)}
    x = torch.randn(4, 3)
    with pytest.raises(rs.ConvergenceError):
        ThetaBlock(mlp(), 0.5, **options)(x)
    with pytest.warns(ConvergenceWarning):
        ThetaBlock(mlp(), 0.5, 1, **options, on_failure="warn")(x)
    trajectory = ThetaBlock(mlp(), 0.5, **options, on_failure="ignore").trajectory(x)
    assert not trajectory.solutions[0].converged.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": 0}, "num_steps must be a whole number, 1 or more, got 0"),
        ({"num_steps": 2.0}, r"num_steps must be .* got 2\.0"),
        ({"horizon": 0.0}, r"horizon must be a finite number other than 0, got 0\.0"),
        ({"horizon": float("inf")}, "horizon must be a finite number .* got inf"),
        ({"horizon": torch.ones(2)}, r"horizon as a tensor must be 0-d .* shape \(2,\)"),
        ({"theta": 2.0}, r"theta must lie in \[0, 1\], got 2\.0"),
        ({"form": "simpson"}, "form must be one of .* got 'simpson'"),
        ({"memory": "forget"}, "memory must be one of .* got 'forget'"),
        ({"guess": "oracle"}, "guess must be one of .* got 'oracle'"),
        ({"on_failure": "hide"}, "on_failure must be one of .* got 'hide'"),
        (
            {"learn_theta": True, "theta": 1.0},
            r"learned theta must start at a number between 0\.001 and 0\.999, got 1\.0",
        ),
        ({"learn_theta": "yes"}, "learn_theta must be True or False, got 'yes'"),
        ({"field": 3}, r"field must be callable with \(t, y\), got 3"),
        ({"field": nn.Linear(3, 3)}, r"two arguments \(t, y\), which Linear cannot take: .* rs\.Autonomous\(module\)"),
        ({"field": nn.Sequential(nn.Linear(3, 3), nn.Tanh())}, r"which Sequential cannot take"),
        ({"field": lambda y: y}, r"which <lambda> cannot take: .* rs\.Autonomous\(function\)"),
        ({"field": lambda t, y, condition: y}, r"which <lambda> cannot take: give it the arguments \(t, y\)"),
        ({"solver": "newton"}, r"solver must be an object such as rs\.Newton\(\), or None, got 'newton'"),
        ({"solver": rs.Newton}, r"solver must be an object such as rs\.Newton\(\), or None, got <class"),
        ({"solver": rs.GMRES()}, "GMRES solves linear systems"),
        ({"stopping": 1e-6}, r"stopping must be an object such as rs\.Stopping\(.*, got 1e-06"),
        ({"stopping": rs.FixedSteps(3)}, "cannot raise: take on_failure"),
        (
            {"adjoint": "implicit"},
            r"adjoint must be an object such as rs\.ImplicitAdjoint\(\), or None",
        ),
        ({"memory": ["store"]}, r"memory must be one of .* got \['store'\]"),
        ({"memory": None}, "memory must be one of .* got None"),
        ({"guess": 3}, "guess must be one of .* got 3"),
        ({"reuse": 1}, "reuse must be True or False, got 1"),
        ({"mode": "fast"}, "mode must be one of .* got 'fast'"),
        ({"horizon": torch.tensor(0.0)}, r"horizon must be a finite number other than 0, got 0\.0"),
    ],
)
def test_refuses_wrong_arguments(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThetaBlock(**{"field": mlp(), "theta": 0.5, **change})


def test_refuses_wrong_inputs() -> None:
    block = ThetaBlock(mlp(), 0.5)
    with pytest.raises(ValueError, match=r"x must be a tensor .* got torch.int64"):
        block(torch.ones(3, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"t0 must be one number or one for each of the 3 samples, got shape \(2,\)"):
        block(torch.ones(3, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="t0 must be a finite number or a tensor, got 'now'"):
        block(torch.ones(3, 3), "now")
    with pytest.raises(ValueError, match=r"scheme must be an object such as rs.schemes.Theta\(0.5\), got 'euler'"):
        Block(mlp(), "euler")
