"""Grids: unequal steps, `Block(times=...)`, and a horizon for each sample, `block(x, horizon=...)`."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import resolvent as rs
from resolvent.blocks import Block, ThetaBlock
from schemes.catalogue import SCHEMES, Manufactured

TIMES = [0.0, 0.1, 0.15, 0.4, 1.0]
ONE_STEP = [name for name, scheme in SCHEMES.items() if scheme.one_step]
CLOSE = rs.Stopping(rtol=1e-12, atol=1e-13)


def field_with(k: Tensor) -> Any:
    def field(t: float | Tensor, y: Tensor) -> Tensor:
        t = torch.as_tensor(t, dtype=y.dtype).reshape(-1, 1)
        return torch.stack([y[:, 1] * k[0], -k[1] * torch.sin(y[:, 0])], 1) - 0.3 * t * y

    return field


def leaves() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.tensor([[0.5, 0.2], [-0.3, 1.0], [0.9, 0.1]], requires_grad=True)
    return x, torch.tensor([1.2, 0.7], requires_grad=True), torch.tensor(TIMES, requires_grad=True)


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_grid_is_its_steps_one_by_one(name: str) -> None:
    problem, t0 = Manufactured(), torch.tensor([0.0, 0.3, 0.7])
    x = problem.state(t0)
    trajectory = Block(problem, SCHEMES[name], times=TIMES, stopping=CLOSE).trajectory(x, t0)
    torch.testing.assert_close(trajectory.times, t0 + torch.tensor(TIMES)[:, None])
    state = x
    for n, (left, right) in enumerate(pairwise(TIMES)):
        single = Block(problem, SCHEMES[name], num_steps=1, horizon=right - left, stopping=CLOSE)
        state = single(state, t0 + left)
        torch.testing.assert_close(trajectory.states[n + 1], state, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_horizon_for_each_sample_is_each_sample_alone(name: str) -> None:
    problem, t0 = Manufactured(), torch.tensor([0.0, 0.3, 0.7])
    x, horizons = problem.state(t0), torch.tensor([0.5, -0.2, 1.0])
    block = Block(problem, SCHEMES[name], num_steps=4, stopping=CLOSE)
    together = block.trajectory(x, t0, horizon=horizons)
    for i in range(3):
        alone = Block(problem, SCHEMES[name], 4, horizons[i].item(), stopping=CLOSE).trajectory(x[i : i + 1], t0[i])
        torch.testing.assert_close(together.states[:, i], alone.states[:, 0], rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(together.times[:, i], alone.times)


@pytest.mark.parametrize("scheme", [rs.schemes.Theta(0.5), rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU3)])
def test_gradcheck_by_state_weights_and_grid(scheme: rs.schemes.Scheme) -> None:
    def on_grid(x: Tensor, k: Tensor, times: Tensor) -> Tensor:
        return Block(field_with(k), scheme, times=times, stopping=CLOSE)(x)

    def over_horizons(x: Tensor, k: Tensor, horizon: Tensor) -> Tensor:
        return Block(field_with(k), scheme, num_steps=2, stopping=CLOSE)(x, horizon=horizon)

    x, k, times = leaves()
    assert gradcheck(on_grid, (x, k, times), fast_mode=True)
    assert gradcheck(over_horizons, (x, k, torch.tensor([0.5, -0.2, 1.0], requires_grad=True)), fast_mode=True)


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
@pytest.mark.parametrize("own", [True, False])
def test_memory_policies(memory: str, own: bool) -> None:
    torch.manual_seed(0)
    field = rs.fields.MLP(2, 6, 1, activation=nn.Tanh())
    x, horizons = torch.randn(3, 2, requires_grad=True), torch.tensor([0.5, 0.8, 1.0], requires_grad=True)
    times = nn.Parameter(torch.tensor(TIMES))
    found = []
    for policy in ("store", memory):
        if own:
            block = ThetaBlock(field, 0.5, 4, memory=policy, mode="sequential", stopping=CLOSE)
            y, inputs = block(x, horizon=horizons), [x, horizons, *field.parameters()]
        else:
            block = ThetaBlock(field, 0.5, times=times, memory=policy, stopping=CLOSE)
            y, inputs = block(x), [x, times, *field.parameters()]
        found.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    for stored, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(recomputed, stored, rtol=1e-8, atol=1e-9)


def test_interpolation_between_unequal_points() -> None:
    problem = Manufactured()
    t0 = torch.tensor([0.0, 0.3])
    block = Block(problem, rs.schemes.RungeKutta(rs.schemes.tableaux.RK4), times=torch.logspace(-2, 0, 30))
    x = problem.state(t0 + 0.01)
    trajectory = block.trajectory(x, t0)
    torch.testing.assert_close(block.interpolate(x, trajectory.times, t0), trajectory.states)
    asked = torch.tensor([0.31, 0.5, 0.99])
    exact = torch.stack([problem.state(t.expand(2)) for t in asked])
    torch.testing.assert_close(block.interpolate(x, asked, t0), exact, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"1 of the 2 requested times lie outside the pass, which covers 0.01 to 1"):
        block.interpolate(x, [0.5, 1.2])
    back = Block(problem, rs.schemes.Theta(0.5), times=[0.0, -0.1, -0.4])
    states = back.trajectory(x).states
    torch.testing.assert_close(back.interpolate(x, [-0.4, 0.0]), states[[2, 0]])


def test_a_learned_grid_is_a_parameter() -> None:
    block = ThetaBlock(rs.fields.MLP(2, 4, 1), times=nn.Parameter(torch.tensor(TIMES)))
    assert "times" in dict(block.named_parameters())
    other = copy.deepcopy(block)
    other.load_state_dict(block.state_dict())
    x = torch.randn(3, 2)
    assert torch.equal(other(x), block(x))
    assert "times=0 to 1" in repr(block)
    assert block.num_steps == 4
    assert block.longest_step == pytest.approx(0.6)


def test_the_analysis_knows_the_steps() -> None:
    torch.manual_seed(0)
    field = rs.fields.MLP(2, 6, 1, activation=nn.Tanh(), bound=2.0)
    block, x = ThetaBlock(field, 1.0, times=[0.0, 0.1, 0.4]), torch.randn(3, 2)
    bound = rs.analysis.lipschitz_bound(block)
    expected = [rs.analysis.lipschitz_bound(ThetaBlock(field, 1.0, 1, h)) for h in (0.1, 0.3)]
    assert bound == pytest.approx(expected[0] * expected[1])
    short, long = rs.analysis.diagnose(block, x).layers
    assert 2 < long.field_norm / short.field_norm < 4
    outputs, tangents, *_ = rs.jvp(block, x, torch.ones_like(x))
    expected_tangents = torch.func.jvp(lambda v: block(v), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangents, expected_tangents, rtol=1e-6, atol=1e-7)
    assert torch.equal(outputs, block(x))


def test_in_single_precision_and_inference_mode() -> None:
    field, x = rs.fields.MLP(2, 4, 1).float(), torch.randn(3, 2, dtype=torch.float32)
    times = torch.tensor(TIMES)
    assert ThetaBlock(field, times=times)(x).dtype == torch.float32
    with torch.inference_mode():
        y = ThetaBlock(field)(x, horizon=torch.tensor([0.1, 0.2, 0.3]))
    assert y.dtype == torch.float32
    assert y.isfinite().all()


def piecewise() -> ThetaBlock:
    return ThetaBlock(rs.fields.Piecewise([rs.fields.MLP(2, 4, 1) for _ in range(2)]), num_steps=2)


X = torch.zeros(3, 2)
WRONG: dict[str, Any] = {
    "times are given in place of": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=TIMES, num_steps=3),
    "increase or decrease strictly": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=[0.0, 1.0, 1.0]),
    "two or more finite numbers": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=[1.0]),
    r"times as a tensor must be \(count,\)": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=torch.zeros(2, 2)),
    "times must be a list of numbers": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times="fine"),  # type: ignore[arg-type]
    "combines the states of equal steps": lambda: Block(rs.fields.MLP(2, 4, 1), rs.schemes.BDF2, times=TIMES),
    "takes equal steps, the same for all": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=TIMES, mode="parallel"),
    "which takes equal steps": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=TIMES, mode="compiled"),
    "by Newton's method, which takes equal": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), mode="parallel")(
        X, horizon=torch.ones(3)
    ),
    "one for each of the 3 samples": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1))(X, horizon=torch.ones(2)),
    "finite and not 0 for each sample": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1))(X, horizon=torch.zeros(3)),
    "no horizon to replace": lambda: ThetaBlock(rs.fields.MLP(2, 4, 1), times=TIMES)(X, horizon=2.0),
    "spread over the horizon of the block": lambda: piecewise()(X, horizon=2.0),
    "One horizon per sample is an argument of the call": lambda: ThetaBlock(
        rs.fields.MLP(2, 4, 1), horizon=torch.ones(3)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_grids_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
