"""Blocks in inference mode, and at the pole of the scheme."""

import pytest
import torch

import resolvent as rs


def bounded(high: float = 0.5) -> rs.fields.Bounded:
    return rs.fields.Bounded(rs.fields.MLP(3, 8, 1, activation=torch.nn.ReLU(), bound=1.0), -5.0, high)


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_inference_mode_gives_the_same_states(memory: str) -> None:
    block = rs.ThetaBlock(bounded(), theta=0.5, num_steps=3, horizon=0.3, memory=memory).eval()
    x = torch.randn(4, 3)
    expected = block(x)
    with torch.inference_mode():
        made = x * 1.0
        for value in (
            block(made, t0=torch.zeros(4)),
            block.trajectory(made).states[-1],
            block.interpolate(made, [0.3])[0],
        ):
            assert not value.requires_grad
            assert (value - expected).abs().max() < 1e-8
    block(x).sum().backward()  # nothing of inference mode is left behind


def test_a_block_refuses_a_field_that_can_reach_the_pole() -> None:
    rs.ThetaBlock(bounded(high=3.9), theta=0.5, num_steps=2, horizon=1.0)
    with pytest.raises(ValueError, match="pole of the stability function"):
        rs.ThetaBlock(bounded(high=4.5), theta=0.5, num_steps=2, horizon=1.0)
    with pytest.raises(ValueError, match="pole of the stability function"):
        rs.ThetaBlock(rs.fields.Piecewise([bounded(high=4.5)] * 2, 1.0), theta=0.5, num_steps=2, horizon=1.0)
    rs.ThetaBlock(bounded(high=4.5), theta=0.0, num_steps=2, horizon=1.0)
    rs.ThetaBlock(bounded(high=4.5), theta=0.5, num_steps=3, horizon=1.0)
