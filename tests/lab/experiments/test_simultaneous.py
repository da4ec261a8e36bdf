"""Layers that are solved together are the layers of the block."""

import pytest
import torch

import resolvent as rs
from resolvent_lab.experiments.simultaneous import Simultaneous


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
    newton, guesses = network._newton, []

    def fail_once(field, x, times, guess):
        guesses.append(guess)
        if len(guesses) == 1:
            raise rs.ConvergenceError("on purpose", None)
        return newton(field, x, times, guess)

    monkeypatch.setattr(network, "_newton", fail_once)
    trajectory = network.trajectory(x)
    assert guesses[0] is None
    assert guesses[1] is not None
    assert trajectory.solutions[0].steps.max() == 0
    torch.testing.assert_close(trajectory.states, network.block.trajectory(x).states, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_samples_have_times_of_their_own(theta):
    field = rs.fields.Piecewise([rs.fields.MLP(1, 4, 0) for _ in range(4)], 2.0)
    block, x = rs.ThetaBlock(field, theta=theta, num_steps=4, horizon=2.0), torch.randn(3, 1)
    starts = torch.tensor([0.0, 0.3, 1.4])
    together = Simultaneous(block).trajectory(x, starts)
    # With theta = 1 the layer is that of the start of a step.
    one_by_one = block.trajectory(x, starts if theta < 1 else (2 * starts).floor() / 2)
    torch.testing.assert_close(together.states, one_by_one.states, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(together.times, block.trajectory(x, starts).times)


def test_a_field_that_couples_samples_is_refused():
    with pytest.raises(ValueError, match="rowwise"):
        Simultaneous(rs.ThetaBlock(rs.Autonomous(torch.nn.BatchNorm1d(2))))
