"""Blocks, integration, penalties and analysis for states of several tensors: all as for one tensor."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import analysis, estimators, regularizers, schemes
from resolvent.integrate import Jumps
from resolvent.schemes import tableaux
from structured_states import FlatPendulum, Multiscale, Pair, Pendulum, images, joined, pair, rows

CLOSE = rs.Stopping(rtol=1e-11, atol=1e-12)
SCHEMES = {
    "backward Euler": schemes.Theta(1.0),
    "trapezoid": schemes.Theta(0.5, "trapezoid"),
    "explicit Euler": schemes.Theta(0.0),
    "Radau": schemes.RungeKutta(tableaux.RADAU5),
    "SDIRK": schemes.RungeKutta(tableaux.SDIRK2),
    "BDF2": schemes.BDF2,
}


@pytest.fixture
def field() -> Pendulum:
    return Pendulum()


def blocks(field: Pendulum, **options: Any) -> tuple[rs.ThetaBlock, rs.ThetaBlock]:
    """A block of pairs, and the same of one tensor."""
    settings = {"num_steps": 4, "horizon": 1.5, "stopping": CLOSE} | options
    return rs.ThetaBlock(field, **settings), rs.ThetaBlock(FlatPendulum(field), **settings)


def assert_same_pass(structured: rs.Block, flat: rs.Block, x: Pair, friction: Tensor) -> None:
    """The same states and gradients, in their structures."""
    leaves, one = Pair(*(part.clone().requires_grad_() for part in x)), joined(x).requires_grad_()
    ours, theirs = structured(leaves), flat(one)
    assert isinstance(ours, Pair)
    torch.testing.assert_close(joined(ours), theirs)
    mine = torch.autograd.grad(joined(ours).square().sum(), [*leaves, friction], allow_unused=True)
    other = torch.autograd.grad(theirs.square().sum(), [one, friction])
    torch.testing.assert_close([joined(mine[:2]), mine[2]], list(other))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_every_scheme(scheme: schemes.Scheme, field: Pendulum) -> None:
    made = [rs.Block(f, scheme, num_steps=4, stopping=CLOSE) for f in (field, FlatPendulum(field))]
    assert_same_pass(made[0], made[1], pair(), field.friction)


@pytest.mark.parametrize(
    ("memory", "mode"),
    [("store", "auto"), ("store", "sequential"), ("store", "parallel"), ("checkpoint", "auto"), ("reversible", "auto")],
)
def test_every_memory_policy_and_mode(memory: str, mode: str, field: Pendulum) -> None:
    assert_same_pass(*blocks(field, memory=memory, mode=mode), pair(), field.friction)


OPTIONS: dict[str, dict[str, Any]] = {
    "guess": {"guess": "extrapolate"},
    "reuse": {"solver": rs.Broyden(), "reuse": True},
    "trapezoid": {"form": "trapezoid"},
    "second order": {"adjoint": rs.ImplicitAdjoint(order=2)},
    "Newton-Krylov": {"solver": rs.NewtonKrylov()},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option(options: dict[str, Any], field: Pendulum) -> None:
    assert_same_pass(*blocks(field, mode="sequential", **options), pair(), field.friction)


def test_trajectories_and_interpolation(field: Pendulum) -> None:
    structured, flat = blocks(field)
    x = pair()
    ours, theirs = structured.trajectory(x), flat.trajectory(joined(x))
    assert isinstance(ours.states, Pair)
    assert ours.states.velocity.shape == (5, 5, 2)
    torch.testing.assert_close(torch.cat(ours.states, 2), theirs.states)
    assert "position=(5, 5, 2)" in repr(ours)
    assert isinstance(ours.solutions[0].value, Pair)
    between = structured.interpolate(x, [0.2, 0.7])
    torch.testing.assert_close(torch.cat(between, 2), flat.interpolate(joined(x), [0.2, 0.7]))


def test_a_multiscale_block_trains_a_network() -> None:
    """With normalised weights, which are computed once a pass, and gradients by finite differences."""
    field = rs.Autonomous(Multiscale(), rowwise=True)
    rs.spectral.spectral_norm(field.module.convs[0], (6, 4, 4), bound=0.5)
    field.eval()
    block = rs.ThetaBlock(field, num_steps=2, stopping=CLOSE)
    x = images(2)

    def loss(bias: Tensor) -> Tensor:
        out = torch.func.functional_call(block, {"field.module.convs.1.bias": bias}, (x,))
        return joined(out).square().sum()

    assert torch.autograd.gradcheck(loss, field.module.convs[1].bias.detach().requires_grad_())


def test_a_sample_alone_and_in_its_batch(field: Pendulum) -> None:
    x = Pair(*(3 * part for part in pair(6)))
    for mode in ("auto", "sequential"):
        block = blocks(field, mode=mode)[0]
        together = block(x)
        for i in range(6):
            torch.testing.assert_close(block(rows(x, slice(i, i + 1))), rows(together, slice(i, i + 1)))


def test_function_transforms(field: Pendulum) -> None:
    block = blocks(field)[0]
    x, v = pair(3), pair(3)
    outputs, tangents = torch.func.jvp(block, (x,), (v,))
    exact = rs.jvp(block, x, v)
    assert isinstance(exact.tangents, Pair)
    assert isinstance(exact.trajectories[0].states, Pair)
    torch.testing.assert_close([outputs, tangents], [exact.outputs, exact.tangents])
    many = Pair(*(torch.stack([part, -part]) for part in x))
    together = torch.func.vmap(block)(many)
    torch.testing.assert_close(Pair(*(part[1] for part in together)), block(Pair(*(-part for part in x))))
    network = nn.Sequential(block, block)
    torch.testing.assert_close(rs.jvp(network, x, v).outputs, block(block(x)))


def test_piecewise_fields_and_times_of_their_own() -> None:
    fields = [Pendulum(), Pendulum()]
    with torch.no_grad():
        fields[1].friction.fill_(2.0)
    flat = rs.fields.Piecewise([FlatPendulum(piece) for piece in fields])
    both = rs.fields.Piecewise(fields)
    x, t0 = pair(), torch.linspace(0.0, 0.5, 5)
    for mode in ("auto", "sequential"):
        ours = rs.ThetaBlock(both, num_steps=4, horizon=1.0, mode=mode, stopping=CLOSE)
        theirs = rs.ThetaBlock(flat, num_steps=4, horizon=1.0, mode=mode, stopping=CLOSE)
        torch.testing.assert_close(joined(ours(x, t0)), theirs(joined(x), t0))
    for piece in fields:
        piece.rowwise = False
    torch.testing.assert_close(joined(both(t0 * 2, x)), flat(t0 * 2, joined(x)))


def test_failures_are_masked_or_raised_with_their_structure() -> None:
    def explosive(t: Any, y: Pair) -> Pair:
        return Pair(y.position**2, 0.0 * y.velocity)

    x = Pair(torch.tensor([[0.1], [5.0]]), torch.ones(2, 1))
    with pytest.raises(rs.ConvergenceError, match="1 of 2") as raised:
        rs.ThetaBlock(explosive, 1.0, 1)(x)
    assert isinstance(raised.value.solution.value, Pair)
    leaf = Pair(*(part.clone().requires_grad_() for part in x))
    rs.ThetaBlock(explosive, 1.0, 1, on_failure="mask")(leaf).position.sum().backward()
    assert leaf.position.grad is not None
    assert leaf.position.grad[0] != 0
    assert leaf.position.grad[1] == 0


def test_the_check_of_a_field_looks_into_structures() -> None:
    class Coupled(Pendulum):
        def forward(self, t: Any, y: Pair) -> Pair:  # type: ignore[override]
            return Pair(y.velocity - y.velocity.mean(0), y.position)

    rs.check_field(Pendulum(), pair())
    with pytest.raises(ValueError, match="Coupled couples the samples"):
        rs.check_field(Coupled(), pair())
    with pytest.raises(ValueError, match="Coupled couples the samples"):
        rs.ThetaBlock(rs.fields.Piecewise([Pendulum(), Coupled()]), num_steps=2)(pair())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_compiled_layers(field: Pendulum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "eager")
    compiled, apart = (rs.ThetaBlock(field, 0.5, 4, 0.4, mode=mode) for mode in ("compiled", "sequential"))
    x = pair()
    for _ in range(2):
        torch.testing.assert_close(compiled(x), apart(x), atol=1e-8, rtol=1e-8)
    assert compiled.strategy.newton.functions


@pytest.mark.parametrize("scheme", ["auto", tableaux.KVAERNO5])
def test_integration(scheme: Any, field: Pendulum) -> None:
    x, times = pair(3), [0.0, 0.5, 1.0]
    atol = Pair(torch.full((2,), 1e-9), torch.full((2,), 1e-7))
    jumps = Jumps([0.3], lambda t, y: Pair(y.position, y.velocity + 1))
    kicked = Jumps([0.3], lambda t, y: y + torch.tensor([0.0, 0.0, 1.0, 1.0]))
    ours = rs.odeint(field, x, times, scheme, 1e-7, atol, jumps=jumps)
    theirs = rs.odeint(FlatPendulum(field), joined(x), times, scheme, 1e-7, torch.cat(atol), jumps=kicked)
    assert isinstance(ours.final, Pair)
    torch.testing.assert_close(torch.cat(ours.states, 2), theirs.states)
    torch.testing.assert_close(ours.accepted, theirs.accepted)
    (gradient,) = torch.autograd.grad(joined(ours.final).sum(), field.friction)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs.final.sum(), field.friction)[0])
    assert "velocity=(3, 3, 2)" in repr(ours)


def test_integration_stops_at_events_and_fails_loudly(field: Pendulum) -> None:
    x = Pair(torch.ones(2, 1), torch.zeros(2, 1))
    found = rs.odeint(field, x, [0.0, 9.0], event=lambda t, y: y.position[:, 0])
    torch.testing.assert_close(found.final.position, torch.zeros(2, 1), atol=1e-8, rtol=0)
    with pytest.raises(rs.ConvergenceError) as raised:
        rs.odeint(field, x, [0.0, 9.0], max_steps=2)
    assert isinstance(raised.value.solution.final, Pair)
    with pytest.raises(ValueError, match=r"atol must be a number, or have the structure Pair\(position=\(batch, 1\)"):
        rs.odeint(field, x, [0.0, 9.0], atol=(1e-3, 1e-3))


PENALTIES = {
    "paper": lambda field, path: regularizers.TrajectoryPenalty(1.0, 1.0, exact=True)(field, path).total,
    "kinetic": regularizers.KineticEnergy(),
    "second derivative": regularizers.TotalDerivative(fraction=0.5),
    "diagonal": regularizers.DiagonalPenalty(exact=True),
    "solvability": regularizers.Solvability(limit=-1.0),
}


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
def test_penalties(penalty: Any, field: Pendulum) -> None:
    structured, flat = blocks(field)
    x = pair()
    ours = penalty(field, structured.trajectory(x))
    theirs = penalty(flat.field, flat.trajectory(joined(x)))
    torch.testing.assert_close(ours, theirs)
    mine, other = (torch.autograd.grad(value, field.friction, allow_unused=True)[0] for value in (ours, theirs))
    torch.testing.assert_close(mine, other)


def test_a_measure_of_the_diagonal_gets_the_structure(field: Pendulum) -> None:
    path = blocks(field)[0].trajectory(pair())
    own = regularizers.DiagonalPenalty(1.0, lambda t, y, D: Pair(0 * D.position, D.velocity**2), exact=True)
    torch.testing.assert_close(own(field, path), field.friction**2 / 2)


def test_the_sensitivity_of_a_network(field: Pendulum) -> None:
    structured, flat = blocks(field)
    x = pair()
    ours = regularizers.Sensitivity(generator=torch.Generator().manual_seed(0))(structured, x)
    theirs = regularizers.Sensitivity(generator=torch.Generator().manual_seed(0))(flat, joined(x))
    torch.testing.assert_close(ours.penalty, theirs.penalty)
    assert regularizers.Sensitivity(0.0)(structured, x).penalty == 0
    with pytest.raises(ValueError, match="takes scores of classes"):
        regularizers.Sensitivity(1.0, "softmax")(structured, x)


def test_estimators(field: Pendulum) -> None:
    x = pair()
    torch.testing.assert_close(estimators.trace(field, 0.0, x, exact=True), -2 * field.friction.expand(5))
    flat = FlatPendulum(field)
    for estimate in (estimators.frobenius, estimators.trace_and_frobenius):
        ours = estimate(field, 0.0, x, generator=torch.Generator().manual_seed(1))
        theirs = estimate(flat, 0.0, joined(x), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(ours, theirs)
    found = estimators.diagonal(field, 0.0, x, exact=True)
    torch.testing.assert_close(found, Pair(torch.zeros(5, 2), -field.friction.expand(5, 2)))


def test_analysis(field: Pendulum) -> None:
    structured, flat = blocks(field)
    x = pair()
    one, path = joined(x), structured.trajectory(x)
    along = torch.stack([joined(Pair(q, p)) for q, p in zip(*path.states, strict=True)])
    for measure in (analysis.jacobian_spectrum, analysis.one_sided_lipschitz, analysis.numerical_range):
        torch.testing.assert_close(measure(field, 0.0, x), measure(flat.field, 0.0, one))
        torch.testing.assert_close(measure(field, path.times, path.states), measure(flat.field, path.times, along))
    torch.testing.assert_close(analysis.local_lipschitz(structured, x), analysis.local_lipschitz(flat, one))
    energy = lambda y: 0.5 * y.velocity.square().sum(1, keepdim=True) - y.position.cos().sum(1, keepdim=True)  # noqa: E731
    expected = joined(Pair(x.position.sin(), x.velocity)).norm(dim=1)
    torch.testing.assert_close(analysis.local_lipschitz(energy, x), expected)
    ours, theirs = analysis.diagnose(structured, x), analysis.diagnose(flat, one)
    assert str(ours) == str(theirs)
    jacobian = analysis.Jacobian(lambda y: field(0.0, y), x)
    torch.testing.assert_close(jacobian.matrix(), analysis.Jacobian(lambda y: flat.field(0.0, y), one).matrix())


def test_the_error_of_a_gradient(field: Pendulum) -> None:
    x = pair()
    own = [field.friction]
    ours = analysis.gradient_error(rs.OneStepAdjoint(), lambda w: field(0.0, w), x, 0.5, own, cotangent=x)
    flat = FlatPendulum(field)
    theirs = analysis.gradient_error(
        rs.OneStepAdjoint(), lambda w: flat(0.0, w), joined(x), 0.5, own, cotangent=joined(x)
    )
    assert ours.relative == pytest.approx(theirs.relative)
    assert ours.by_input == pytest.approx(theirs.by_input)
