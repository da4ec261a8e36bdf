"""Layers that are solved together are the layers of the block."""

import pytest
import torch

import resolvent as rs
from resolvent.experiments.simultaneous import Simultaneous


def make_block(theta: float) -> rs.ThetaBlock:
    return rs.ThetaBlock(rs.fields.MLP(2, 8, 1), theta=theta, num_steps=6, horizon=3.0)


@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 1.0])
def test_states_and_gradients_agree_with_layers_solved_one_by_one(theta):
    block, x = make_block(theta), torch.randn(4, 2)
    together, one_by_one = Simultaneous(block).trajectory(x), block.trajectory(x)
    torch.testing.assert_close(together.states, one_by_one.states, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(together.times, one_by_one.times)
    weights = list(block.parameters())
    gradients = [torch.autograd.grad(t.states.square().sum(), weights) for t in (together, one_by_one)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_a_second_call_starts_where_the_first_one_ended():
    network, x = Simultaneous(make_block(0.5)), torch.randn(4, 2)
    first, second = (network.trajectory(x).solutions[0].steps.max() for _ in range(2))
    assert second == 0 < first


def test_another_batch_size_starts_anew():
    network = Simultaneous(make_block(0.5))
    network.trajectory(torch.randn(4, 2))
    assert network.trajectory(torch.randn(3, 2)).states.shape == (7, 3, 2)


def test_layers_are_solved_one_by_one_where_all_at_once_fails(monkeypatch):
    network, x = Simultaneous(make_block(0.5)), torch.randn(4, 2)
    solve, guesses = network._solve, []

    def fail_once(x, guess):
        guesses.append(guess)
        if len(guesses) == 1:
            raise rs.ConvergenceError("on purpose", None)
        return solve(x, guess)

    monkeypatch.setattr(network, "_solve", fail_once)
    trajectory = network.trajectory(x)
    assert guesses[0] is None
    assert guesses[1] is not None
    assert trajectory.solutions[0].steps.max() == 0
    torch.testing.assert_close(trajectory.states, network.block.trajectory(x).states, rtol=1e-8, atol=1e-8)


def test_a_field_that_depends_on_time_is_refused():
    field = rs.fields.Piecewise([rs.fields.MLP(2, 4, 0) for _ in range(2)], 1.0)
    with pytest.raises(ValueError, match="autonomous"):
        Simultaneous(rs.ThetaBlock(field, num_steps=2))
