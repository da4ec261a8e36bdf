"""What penalties cost: evaluations, backward passes, normalised weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regularizers.trajectories import HORIZON, STEPS, Opaque, follow
from resolvent.fields import MLP, Field, Piecewise
from resolvent.regularizers import DiagonalPenalty, KineticEnergy, TotalDerivative, TrajectoryPenalty


class Counted(Field):
    """Counts how often it is called, and with how many rows."""

    rowwise = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = MLP(3, 5, 1)
        self.rows: list[int] = []

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        self.rows.append(len(y))
        return self.inner(t, y)


@pytest.fixture
def counted():
    field = Counted()
    trajectory = follow(field, (3,))
    field.rows.clear()
    return field, trajectory


@pytest.mark.parametrize(
    "penalty", [TrajectoryPenalty(), KineticEnergy(0.0), TotalDerivative(0.0, order=3), DiagonalPenalty(0.0)]
)
def test_without_weight_nothing_is_evaluated(counted, penalty):
    field, trajectory = counted
    before = torch.get_rng_state()
    value = penalty(field, trajectory)
    assert field.rows == []
    assert torch.equal(before, torch.get_rng_state())
    assert (value.total if isinstance(penalty, TrajectoryPenalty) else value) == 0


def test_variation_alone_evaluates_nothing():
    layers = Piecewise([Counted() for _ in range(STEPS)], HORIZON)
    trajectory = follow(layers, (3,))
    for piece in layers.pieces:
        piece.rows.clear()
    assert TrajectoryPenalty(variation=1.0)(layers, trajectory).total > 0
    assert all(piece.rows == [] for piece in layers.pieces)


@pytest.mark.parametrize(
    ("options", "points"),
    [
        ({"divergence": 1.0}, STEPS),
        ({"divergence": 1.0, "power": 0}, STEPS + 1),
        ({"jacobian": 1.0}, STEPS + 1),
        ({"divergence": 1.0, "jacobian": 1.0}, STEPS + 1),
        ({"divergence": 1.0, "jacobian": 1.0, "probes": 6}, STEPS + 1),
        ({"divergence": 1.0, "fraction": 0.5}, STEPS),
        ({"divergence": 1.0, "fraction": 0.0}, STEPS - 1),
    ],
)
def test_all_terms_share_one_evaluation(counted, options, points):
    field, trajectory = counted
    TrajectoryPenalty(**options)(field, trajectory).total.backward()
    assert field.rows == [3 * points]


def test_a_field_that_may_need_its_whole_batch_sees_nothing_but_it():
    class Watched(Opaque):
        def forward(self, t, y):
            assert len(y) == 3
            calls.append(t)
            return super().forward(t, y)

    calls = []
    field = Watched()
    trajectory = follow(field, (3,))
    calls.clear()
    TrajectoryPenalty(jacobian=1.0)(field, trajectory)
    assert calls == list(trajectory.times)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return weight / 2


def test_parametrized_weights_are_computed_once():
    field = Opaque()
    half = Half()
    parametrize.register_parametrization(field.inner, "weight", half)
    trajectory = follow(field, (3,))
    half.calls = 0
    TrajectoryPenalty(1.0, 1.0, probes=3)(field, trajectory).total.backward()
    assert half.calls == 1
    assert field.inner.parametrizations.weight.original.grad.abs().max() > 0
