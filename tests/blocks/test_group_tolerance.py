"""Layers that are solved for together are as accurate, each of them, as if they had been solved for alone."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks.strategies.group_tolerance import GroupStopping, LayerTest
from seeding import shifted

RTOL = 1e-6

# torch's compiler uses the one, and looks at the .grad of all that it is given.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def excess(block: rs.ThetaBlock, net: nn.Module, x: Tensor) -> Tensor:
    """The residual of the worst layer of every sample, in units of its tolerance. It is computed in double precision,
    and rounding in single precision may add four units in the last place of each of its terms."""
    states, field = block.trajectory(x).states.detach().double(), copy.deepcopy(net).double()
    worst = torch.zeros(len(x), dtype=torch.float64)
    with torch.no_grad():
        for before, after in itertools.pairwise(states):
            slopes = field(after)
            terms = torch.stack([before, after, slopes]).norm(dim=2)
            rounding = 4 * torch.finfo(torch.float32).eps * terms.sum(0)
            residual = (after - before - slopes).norm(dim=1)
            worst = torch.maximum(worst, (residual - rounding) / (RTOL * terms[:2].amax(0)))
    return worst


def drawn(unknowns: int, gain: float, seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(shifted(seed))
    net = nn.Sequential(nn.Linear(unknowns, 20), nn.Tanh(), nn.Linear(20, unknowns)).float()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(gain)
    return net, torch.randn(512, unknowns, dtype=torch.float32)


def five_layers(net: nn.Module, mode: str) -> rs.ThetaBlock:
    return rs.ThetaBlock(rs.Autonomous(net), 1.0, 5, 5.0, mode=mode, stopping=rs.Stopping(rtol=RTOL, atol=0.0))


@pytest.mark.parametrize(("unknowns", "gain"), [(2, 1.0), (2, 2.0), (2, 3.0), (8, 0.5), (8, 1.5), (32, 0.5), (32, 1.5)])
def test_a_small_layer_beside_large_ones(unknowns: int, gain: float) -> None:
    """In single precision the tolerance of a group is at its rounding, and a mean over the layers hides a small one."""
    for seed in range(4):
        net, x = drawn(unknowns, gain, seed)
        assert excess(five_layers(net, "parallel"), net, x).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("unknowns", "gain"), [(2, 1.0), (2, 2.0), (8, 0.5), (8, 1.0), (32, 0.5)])
def test_the_same_of_compiled_layers(monkeypatch: pytest.MonkeyPatch, unknowns: int, gain: float) -> None:
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "eager")
    net, x = drawn(unknowns, gain, 0)
    block = five_layers(net, "compiled")
    for _ in range(2):  # The first pass learns the number of steps.
        assert excess(block, net, x).max() <= 1


def test_samples_that_contract_are_not_solved_further_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their errors of stages are hardly amplified; those of samples that Newton's method solves may be."""
    net, x = drawn(8, 1.0, 0)
    net, x = net.double(), x.double()
    block = rs.ThetaBlock(rs.Autonomous(net), 0.5, 4, 2.0, stopping=rs.Stopping(RTOL, 0.0))
    trajectory = block.trajectory(x)
    before, after = trajectory.states[:-1], trajectory.states[1:]
    residual = (after - before - 0.5 * net((before + after) / 2)).norm(dim=2)
    assert (residual <= RTOL * torch.maximum(before.norm(dim=2), after.norm(dim=2))).all()
    monkeypatch.setattr(GroupStopping, "for_contraction", lambda self: self)
    assert trajectory.solutions[0].steps.sum() < 0.85 * block.trajectory(x).solutions[0].steps.sum()


def test_layers_that_are_solved_again_start_at_the_states_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = drawn(2, 1.5, 0)
    net, x = net.double(), x[:5].double().requires_grad_()
    block = rs.ThetaBlock(rs.Autonomous(net), 0.5, 5, 5.0)
    exact = block(x)
    (gradient,) = torch.autograd.grad(exact.square().sum(), x)
    group = "resolvent.blocks.strategies.all_together"
    monkeypatch.setattr(f"{group}.accurate", lambda pass_, F, x, *_: torch.zeros(len(x), dtype=torch.bool))
    trajectory = block.trajectory(x)
    assert len(trajectory.solutions) == 5
    assert max(int(solution.steps.max()) for solution in trajectory.solutions[1:]) <= 1
    torch.testing.assert_close(trajectory.states[-1], exact, rtol=1e-8, atol=1e-8)
    (again,) = torch.autograd.grad(trajectory.states[-1].square().sum(), x)
    torch.testing.assert_close(again, gradient, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_the_tolerance_of_a_layer_is_relative_to_the_state_before_it(factor: float) -> None:
    """Stages of stiff layers are small, and their states are not: w_n = (y_{n-1} + y_n) / 2, y_n = -0.98 y_{n-1}."""
    states = torch.tensor([1.0, -0.98, 0.98**2, -(0.98**3)])
    stages = 0.5 * (states[1:] + states[:-1])
    wanted, b = torch.ones(1, dtype=torch.bool), torch.ones(1, 3, 1)
    r = factor * 1e-6 * states[:-1].reshape(1, 3, 1)
    found = LayerTest(1e-6, 0.0, 0.5).each(wanted, r, b, stages.reshape(1, 3, 1))
    assert found.tolist() == [factor < 1]
