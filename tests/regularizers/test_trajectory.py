"""The regulariser of the paper against dense computations."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from regularizers.trajectories import FIELDS, HORIZON, STEPS, dense_penalty, follow
from resolvent.blocks import ThetaBlock, Trajectory
from resolvent.fields import MLP, Autonomous, Bounded, Piecewise
from resolvent.regularizers import TrajectoryPenalty
from seeding import shifted


@pytest.mark.parametrize("power", [0, 0.5, 2])
@pytest.mark.parametrize("fraction", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", FIELDS)
def test_it_is_the_dense_computation(name, fraction, power):
    make, shape = FIELDS[name]
    field = make()
    trajectory = follow(field, shape)
    terms = TrajectoryPenalty(0.7, 0.3, power=power, fraction=fraction, exact=True)(field, trajectory)
    divergence, plain, jacobian = dense_penalty(field, trajectory, power, fraction)
    # At its end a layer with time-dependent weights is read just before the jump, by some 1e-7 of a step.
    tolerance = 1e-6 if name == "piecewise in time" and fraction == 1 else 1e-10
    assert terms.divergence.item() == pytest.approx(0.7 * divergence, abs=tolerance)
    assert terms.jacobian.item() == pytest.approx(0.3 * jacobian, abs=tolerance)
    assert terms.mean_divergence.item() == pytest.approx(plain, abs=tolerance)
    assert terms.mean_jacobian.item() == pytest.approx(jacobian, abs=tolerance)
    assert terms.total.item() == pytest.approx(0.7 * divergence + 0.3 * jacobian, abs=tolerance)
    assert not terms.variation


def test_samples_with_times_of_their_own():
    make, shape = FIELDS["dependent on time"]
    field = make()
    trajectory = follow(field, shape, t0=torch.tensor([0.0, 0.4, -1.0]))
    for fraction in (None, 0.5):
        terms = TrajectoryPenalty(1.0, 1.0, fraction=fraction, exact=True)(field, trajectory)
        divergence, _, jacobian = dense_penalty(field, trajectory, 2, fraction)
        assert terms.divergence.item() == pytest.approx(divergence, abs=1e-10)
        assert terms.jacobian.item() == pytest.approx(jacobian, abs=1e-10)


class Matrix(nn.Module):
    def __init__(self, A: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(A)

    def forward(self, y: Tensor) -> Tensor:
        return y @ self.A.T


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_a_linear_field_has_a_closed_form(T, p):
    A = torch.randn(3, 3)
    field = Autonomous(Matrix(A), rowwise=True)
    trajectory = ThetaBlock(field, 0.5, T, 1.0).trajectory(torch.randn(2, 3))
    terms = TrajectoryPenalty(divergence=2.0, jacobian=3.0, power=p, exact=True)(field, trajectory)
    powers = sum((t / T) ** p for t in range(1, T)) + 0.5
    assert terms.divergence.item() == pytest.approx(2 / 3 * A.trace().item() * powers / T, abs=1e-12)
    assert terms.jacobian.item() == pytest.approx(3 / 9 * A.square().sum().item(), abs=1e-12)
    assert terms.mean_divergence.item() == pytest.approx(A.trace().item() / 3, abs=1e-12)


def test_the_divergence_alone_needs_no_point_at_t_0_and_has_the_same_value():
    make, shape = FIELDS["piecewise"]
    field = make()
    trajectory = follow(field, shape)
    alone = TrajectoryPenalty(0.7, exact=True)(field, trajectory)
    beside = TrajectoryPenalty(0.7, 1.0, exact=True)(field, trajectory)
    assert alone.divergence.item() == pytest.approx(beside.divergence.item(), abs=1e-14)
    assert alone.mean_divergence is None
    assert not alone.jacobian


class TestVariation:
    def field(self) -> tuple[Piecewise, float]:
        pieces = [MLP(2, 3, 0) for _ in range(STEPS)]
        square = 0.0
        for before, after in pairwise(pieces):
            for p, q in zip(before.parameters(), after.parameters(), strict=True):
                square += (p - q).square().sum().item()
        return Piecewise(pieces, HORIZON), square

    def test_it_sums_the_differences_that_exist(self):
        field, square = self.field()
        trajectory = follow(field, (2,))
        terms = TrajectoryPenalty(variation=0.1)(field, trajectory)
        assert terms.variation.item() == pytest.approx(0.1 / STEPS * square, rel=1e-12)
        assert terms.total.item() == terms.variation.item()
        terms = TrajectoryPenalty(variation=0.1, variation_scale="1/T^2")(field, trajectory)
        assert terms.variation.item() == pytest.approx(0.1 / STEPS**2 * square, rel=1e-12)

    def test_it_looks_inside_and_counts_the_weights_before_normalisation(self):
        pieces = [Bounded(MLP(2, 3, 0, bound=1.0), -1.0, 1.0) for _ in range(2)]
        field = Piecewise(pieces, HORIZON)
        outer = nn.ModuleDict({"field": field})
        outer.forward = lambda t, y: field(t, y)
        square = sum(
            (p - q).square().sum().item() for p, q in zip(pieces[0].parameters(), pieces[1].parameters(), strict=True)
        )
        terms = TrajectoryPenalty(variation=1.0)(outer, follow(field, (2,)))
        assert terms.variation.item() == pytest.approx(square / 2, rel=1e-12)

    def test_minimising_it_makes_the_pieces_alike(self):
        field, _ = self.field()
        trajectory = follow(field, (2,))
        optimiser = torch.optim.SGD(field.parameters(), lr=0.5)
        for _ in range(300):
            optimiser.zero_grad()
            TrajectoryPenalty(variation=1.0)(field, trajectory).total.backward()
            optimiser.step()
        first, *others = (nn.utils.parameters_to_vector(piece.parameters()) for piece in field.pieces)
        assert all(torch.allclose(first, other, atol=1e-6) for other in others)

    def test_one_piece_does_not_vary(self):
        field = Piecewise([MLP(2, 3, 0)], HORIZON)
        assert TrajectoryPenalty(variation=1.0)(field, follow(field, (2,))).variation == 0


def test_the_estimate_is_unbiased():
    make, shape = FIELDS["piecewise"]
    field = make()
    trajectory = follow(field, shape)
    # One trajectory many times over is as good as many calls.
    copies = 3000
    many = Trajectory(trajectory.times, trajectory.states.repeat(1, copies // 3, 1), ())
    exact = TrajectoryPenalty(1.0, 1.0, exact=True)(field, trajectory)
    for distribution in ("gaussian", "rademacher"):
        penalty = TrajectoryPenalty(1.0, 1.0, distribution=distribution)
        draws = [penalty(field, Trajectory(many.times, part, ())) for part in many.states.detach().split(100, dim=1)]
        for name in ("divergence", "jacobian", "mean_divergence", "mean_jacobian"):
            values = torch.stack([getattr(terms, name) for terms in draws]).detach()
            error = values.std() / len(values) ** 0.5
            assert error > 0
            assert (values.mean() - getattr(exact, name)).abs() <= 4 * error, (name, distribution)


def test_more_probes_have_less_variance():
    field, shape = MLP(3, 5, 1), (3,)
    trajectory = follow(field, shape)
    spread = []
    for probes in (1, 16):
        penalty = TrajectoryPenalty(1.0, probes=probes)
        spread.append(torch.stack([penalty(field, trajectory).total for _ in range(200)]).std())
    assert 2.5 < spread[0] / spread[1] < 6


def test_probes_come_from_the_generator_and_are_redrawn():
    field = MLP(3, 5, 1)
    trajectory = follow(field, (3,))
    runs = []
    for _ in range(2):
        penalty = TrajectoryPenalty(1.0, 1.0, generator=torch.Generator().manual_seed(shifted(3)))
        torch.rand(1)
        runs.append([penalty(field, trajectory).total for _ in range(2)])
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])


def test_a_saturated_divergence_is_the_sigmoid_of_each():
    A = torch.randn(3, 3)
    field = Autonomous(Matrix(A), rowwise=True)
    trajectory = follow(field, (3,))
    terms = TrajectoryPenalty(1.0, power=0, exact=True, saturate=True)(field, trajectory)
    assert terms.divergence.item() == pytest.approx(A.trace().sigmoid().item() / 3, abs=1e-12)
    assert terms.mean_divergence.item() == pytest.approx(A.trace().item() / 3, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divergence": -1.0}, "divergence must be a finite number, 0 or more, got -1.0"),
        ({"jacobian": float("inf")}, "got inf"),
        ({"variation": "0.1"}, "got '0.1'"),
        ({"power": -2}, "power .* got -2"),
        ({"probes": 0}, "got 0"),
        ({"distribution": "uniform"}, "got 'uniform'"),
        ({"fraction": 1.5}, "got 1.5"),
        ({"variation_scale": "T"}, "got 'T'"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TrajectoryPenalty(**options)


def test_a_penalty_needs_a_trajectory_and_the_variation_pieces_that_are_alike():
    field = MLP(3, 5, 1)
    with pytest.raises(ValueError, match="reads a Trajectory"):
        TrajectoryPenalty(1.0)(field, torch.randn(3, 3))
    with pytest.raises(ValueError, match="MLP has none"):
        TrajectoryPenalty(variation=1.0)(field, follow(field, (3,)))
    unlike = Piecewise([MLP(3, 5, 1), MLP(3, 6, 1)], HORIZON)
    with pytest.raises(ValueError, match=r"piece 0 has .* piece 1 has"):
        TrajectoryPenalty(variation=1.0)(unlike, follow(unlike, (3,)))
