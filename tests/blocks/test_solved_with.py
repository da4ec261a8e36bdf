"""Other options for a while, and the old ones afterwards."""

import pytest
import torch
from torch import nn

import resolvent as rs


def model() -> nn.Sequential:
    field = rs.fields.MLP(2, 4, 1)
    return nn.Sequential(rs.ThetaBlock(field, 0.5, 2, solver=rs.Picard()), nn.Tanh(), rs.ThetaBlock(field, 1.0, 2))


def test_options_hold_inside_and_are_restored_after_an_error() -> None:
    blocks = model()
    before = [blocks[0].options, blocks[2].options]
    tight = rs.Stopping(rtol=1e-10)
    with pytest.raises(RuntimeError, match="on purpose"), rs.blocks.solved_with(blocks, stopping=tight):  # noqa: PT012
        assert [block.options.stopping for block in (blocks[0], blocks[2])] == [tight, tight]
        assert [block.options.solver for block in (blocks[0], blocks[2])] == [rs.Picard(), rs.Auto()]
        raise RuntimeError("on purpose")
    assert [blocks[0].options, blocks[2].options] == before


def test_a_pass_follows_the_options() -> None:
    block, x = model()[2], torch.randn(3, 2)
    with rs.blocks.solved_with(block, stopping=rs.FixedSteps(1), solver=rs.Picard(), on_failure="ignore"):
        assert all(bool((solve.steps == 1).all()) for solve in block.trajectory(x).solutions)
    assert all(solve.all_converged for solve in block.trajectory(x).solutions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "newton"}, "solver must be an object"),
        ({"on_failure": "shrug"}, "on_failure"),
        ({"stopping": rs.FixedSteps(3)}, "never checks"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_changed(options: dict[str, object], message: str) -> None:
    blocks = model()
    before = [blocks[0].options, blocks[2].options]
    with pytest.raises(ValueError, match=message), rs.blocks.solved_with(blocks, **options):
        pass
    assert [blocks[0].options, blocks[2].options] == before
