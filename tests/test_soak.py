"""The short form of `make soak`: see docs/soak.md."""

import pytest
import torch

from seeding import shifted
from soaking import HOSTILE, hostile, hostile_solves, train


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning")
def test_a_training_on_hostile_batches_is_never_silently_wrong() -> None:
    torch.set_default_dtype(torch.float32)
    training = train(400, shifted(0))
    assert training.wrong == []
    # The memory of 400 steps says little; the number of tensors that are still alive does.
    assert training.tensors[1] <= training.tensors[0] + 30
    assert {kind for kind, _ in training.outcomes} == set(HOSTILE)
    assert not [(kind, outcome) for kind, outcome in training.outcomes if kind == "plain" and outcome != "trained"]


@pytest.mark.slow
def test_hostile_solves_make_no_false_claim() -> None:
    solves = hostile_solves(20_000, shifted(0))
    assert not solves.faults, solves.examples
    assert solves.statuses.total() >= 20_000


def test_batches_are_as_hostile_as_they_are_called() -> None:
    x = torch.randn(4, 3, dtype=torch.float32)
    assert hostile(x, "huge").abs().max() > 1e28
    assert 0 < hostile(x, "denormal").abs().max() < torch.finfo(torch.float32).tiny
    assert hostile(x, "nan").isnan().sum() == hostile(x, "infinite").isinf().sum() == 1
    assert len(hostile(x, "empty")) == 0
    assert torch.equal(hostile(x, "plain"), x)


@pytest.mark.parametrize("kind", ["empty", "one sample"])
def test_blocks_and_equilibria_take_batches_of_any_size(kind: str) -> None:
    """An empty batch used to end in an error of torch where the Jacobian of a perceptron was formed."""
    import resolvent as rs

    x = hostile(torch.randn(4, 3), kind).requires_grad_()
    for model in (rs.ThetaBlock(rs.fields.MLP(3, 8, 1), 0.5, 3), rs.Equilibrium(lambda z, x: torch.tanh(0.5 * z + x))):
        y = model(x)
        y.sum().backward()
        assert y.shape == x.shape == x.grad.shape
