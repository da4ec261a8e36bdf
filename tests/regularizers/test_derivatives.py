"""Kinetic energy, total derivatives and the diagonal along a trajectory."""

import math

import pytest
import torch
from torch import Tensor

from regularizers.trajectories import FIELDS, HORIZON, STEPS, dense_penalty, follow
from resolvent.blocks import ThetaBlock
from resolvent.fields import Field, Piecewise
from resolvent.regularizers import DiagonalPenalty, KineticEnergy, TotalDerivative


class Linear(Field):
    rowwise = True

    def __init__(self, A: Tensor) -> None:
        super().__init__()
        self.A = A

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return y @ self.A.T


class Swing(Field):
    """y' = cos(t) y^2, with its next derivatives by hand."""

    rowwise = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.cos(torch.as_tensor(t, dtype=y.dtype)).reshape(-1, 1) * y**2

    def second(self, t: Tensor, y: Tensor) -> Tensor:
        return -torch.sin(t) * y**2 + 2 * torch.cos(t) ** 2 * y**3

    def third(self, t: Tensor, y: Tensor) -> Tensor:
        c, s = torch.cos(t), torch.sin(t)
        return -c * y**2 - 6 * s * c * y**3 + 6 * c**3 * y**4


def trapezoid(values: Tensor) -> float:
    """The integral of values (points, batch) over the horizon, averaged over the batch."""
    inner, ends = values[1:-1].sum(0), (values[0] + values[-1]) / 2
    return (HORIZON / STEPS * (inner + ends)).mean().item()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_total_derivatives_of_a_linear_field(order):
    A = torch.randn(3, 3)
    field = Linear(A)
    trajectory = follow(field, (3,))
    expected = trapezoid((trajectory.states @ torch.linalg.matrix_power(A, order).T).square().sum(2))
    assert TotalDerivative(0.5, order)(field, trajectory).item() == pytest.approx(0.5 * expected, rel=1e-12)


@pytest.mark.parametrize("t0", ["common", "own"])
@pytest.mark.parametrize("order", [2, 3])
def test_total_derivatives_of_a_field_that_depends_on_time(order, t0):
    field = Swing()
    start = 0.3 if t0 == "common" else torch.tensor([0.3, -0.5, 1.0])
    trajectory = ThetaBlock(field, 0.5, STEPS, HORIZON).trajectory(0.3 * torch.rand(3, 2), start)
    t = trajectory.times.reshape(STEPS + 1, -1, 1)
    derivative = field.second if order == 2 else field.third
    expected = trapezoid(derivative(t, trajectory.states).square().sum(2))
    assert TotalDerivative(order=order)(field, trajectory).item() == pytest.approx(expected, rel=1e-12)


def test_total_derivatives_are_those_of_the_solution():
    field, theta = Swing(), 0.5
    y, h = torch.tensor([[0.4]]), 1e-3
    fine = ThetaBlock(field, theta, 4, 4 * h).trajectory(y, 0.2)
    finite = (fine.states[2] - 2 * fine.states[1] + fine.states[0]) / h**2
    short = ThetaBlock(field, theta, 1, 1e-9).trajectory(fine.states[1], 0.2 + h)
    density = TotalDerivative(order=2)(field, short) / 1e-9
    assert density.sqrt().item() == pytest.approx(abs(finite.item()), rel=1e-3)


@pytest.mark.parametrize("name", FIELDS)
def test_kinetic_energy_is_the_integral_of_the_squared_speed(name):
    make, shape = FIELDS[name]
    field = make()
    trajectory = follow(field, shape)
    pieces = field.pieces if isinstance(field, Piecewise) else [field] * STEPS
    moments = enumerate(zip(trajectory.times, trajectory.states, strict=True))
    speeds = torch.stack([pieces[min(n, STEPS - 1)](t, y).flatten(1).square().sum(1) for n, (t, y) in moments])
    expected = trapezoid(speeds)
    assert KineticEnergy(2.0)(field, trajectory).item() == pytest.approx(2 * expected, rel=1e-12)
    assert TotalDerivative(2.0, order=1)(field, trajectory).item() == pytest.approx(2 * expected, rel=1e-12)


def test_the_second_derivative_of_piecewise_fields_is_that_of_the_piece():
    make, shape = FIELDS["piecewise in time"]
    field = make()
    trajectory = follow(field, shape)
    values = []
    for n, (t, y) in enumerate(zip(trajectory.times, trajectory.states.detach(), strict=True)):
        F = field.pieces[min(n, STEPS - 1)]
        rows = []
        for row in y:
            along_t = torch.func.jacrev(lambda s, row=row, F=F: F(s, row[None])[0])(t)
            along_y = torch.func.jacrev(lambda r, t=t, F=F: F(t, r[None])[0])(row)
            rows.append((along_t + along_y @ F(t, row[None])[0]).square().sum())
        values.append(torch.stack(rows))
    assert TotalDerivative(order=2)(field, trajectory).item() == pytest.approx(
        trapezoid(torch.stack(values)), rel=1e-10
    )


def test_a_fraction_of_one_half_is_the_midpoint_of_a_step():
    field = Linear(torch.randn(3, 3))
    trajectory = follow(field, (3,))
    middle = (trajectory.states[:-1] + trajectory.states[1:]) / 2
    speed = (middle @ field.A.T).square().sum(2)
    expected = (HORIZON / STEPS * speed.sum(0)).mean().item()
    assert KineticEnergy(fraction=0.5)(field, trajectory).item() == pytest.approx(expected, rel=1e-12)


def test_the_energy_is_positive_backwards_in_time():
    field = Linear(torch.randn(3, 3))
    trajectory = ThetaBlock(field, 0.5, STEPS, -HORIZON).trajectory(torch.randn(3, 3))
    expected = trapezoid((trajectory.states @ field.A.T).square().sum(2))
    assert KineticEnergy()(field, trajectory).item() == pytest.approx(expected, rel=1e-12)


class TestDiagonal:
    def test_a_linear_measure_is_the_divergence(self):
        make, shape = FIELDS["piecewise"]
        field = make()
        trajectory = follow(field, shape)
        value = DiagonalPenalty(0.5, lambda t, y, D: D, exact=True)(field, trajectory)
        assert value.item() == pytest.approx(0.5 * dense_penalty(field, trajectory, 0)[1], abs=1e-10)

    def test_the_square_of_a_linear_field(self):
        A = torch.randn(3, 3)
        field = Linear(A)
        trajectory = follow(field, (3,))
        expected = A.diagonal().square().mean().item()
        assert DiagonalPenalty(0.5, exact=True)(field, trajectory).item() == pytest.approx(0.5 * expected, rel=1e-12)
        estimates = torch.stack([DiagonalPenalty(0.5, probes=4)(field, trajectory) for _ in range(300)])
        off = (A.square().sum(0) - A.diagonal().square()).mean().item()
        error = 4 * estimates.std().item() / math.sqrt(300)
        assert estimates.mean().item() == pytest.approx(0.5 * (expected + off / 4), abs=error)

    @pytest.mark.parametrize("name", ["dependent on time", "opaque"])
    def test_the_measure_sees_times_and_states(self, name):
        make, shape = FIELDS[name]
        field = make()
        trajectory = follow(field, shape)

        def measure(t: Tensor, y: Tensor, D: Tensor) -> Tensor:
            return t.reshape(-1, 1) * y + 0 * D

        value = DiagonalPenalty(1.0, measure)(field, trajectory)
        expected = trapezoid((trajectory.times[:, None, None] * trajectory.states).mean(2)) / HORIZON
        assert value.item() == pytest.approx(expected, rel=1e-12)

    def test_minimising_it_shrinks_the_diagonal_and_leaves_the_rest(self):
        A = torch.randn(3, 3, requires_grad=True)
        start = A.detach().clone()
        field = Linear(A)
        trajectory = follow(field, (3,))
        for _ in range(100):
            (gradient,) = torch.autograd.grad(DiagonalPenalty(exact=True)(field, trajectory), A)
            A.data -= 0.3 * gradient
        assert A.diagonal().abs().max() < 1e-3
        off = ~torch.eye(3, dtype=torch.bool)
        assert torch.equal(A.detach()[off], start[off])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KineticEnergy(-1.0), "weight must be a finite number, 0 or more, got -1.0"),
        (lambda: KineticEnergy(fraction=2), "got 2"),
        (lambda: TotalDerivative(order=0), "1 or more, got 0"),
        (lambda: TotalDerivative(order=1.5), "got 1.5"),
        (lambda: DiagonalPenalty(probes=0), "got 0"),
        (lambda: DiagonalPenalty(distribution="x"), "got 'x'"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_measure_keeps_the_shape():
    field = Linear(torch.randn(3, 3))
    with pytest.raises(ValueError, match=r"of y, but gave \(15,\)"):
        DiagonalPenalty(1.0, lambda t, y, D: D.sum(1))(field, follow(field, (3,)))
