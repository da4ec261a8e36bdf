"""Relaxation of the fixed point: what it measures, and that fields which decay take fewer evaluations."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.equation.relaxation import relaxation, relaxed_twice
from seeding import shifted

TAU = 0.8


def measured(start: Tensor, w: Tensor, image: Tensor) -> Tensor | None:
    return relaxation(start, w, image, (image - w).norm(dim=1) / (w - start).norm(dim=1))


def two_steps(slopes: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first guess b of w = b + tau slopes w, and the iterates after one and two plain steps."""
    w = b + TAU * slopes * b
    return b, w, b + TAU * slopes * w


@pytest.mark.parametrize("decay", [1.0, 3.0, 20.0])
def test_a_decay_is_undone(decay: float) -> None:
    steps = two_steps(torch.full((3, 7), -decay), torch.randn(3, 7))
    alpha = measured(*steps)
    assert alpha is not None
    torch.testing.assert_close(alpha, torch.full((3,), 1 / (1 + TAU * decay)))
    torch.testing.assert_close(relaxed_twice(*steps, alpha), steps[0] / (1 + TAU * decay))


def test_it_is_that_of_each_sample() -> None:
    """Relaxed are samples that do not contract, and only if that helps."""
    torch.manual_seed(shifted(1))
    slopes = torch.stack([torch.full((8,), value) for value in (-2.0, -0.1, 0.9, 2.0, -500.0)])
    slopes = torch.cat([slopes, torch.linspace(-4.0, 4.0, 8)[None]])  # On both sides alike.
    b = torch.cat([torch.randn(5, 8), torch.ones(1, 8)])
    steps = two_steps(slopes, b)
    alpha = measured(*steps)
    assert alpha is not None
    expected = torch.ones(6)
    expected[0] = 1 / (1 + 2 * TAU)
    torch.testing.assert_close(alpha, expected)
    torch.testing.assert_close(relaxed_twice(*steps, alpha)[1:], steps[2][1:])
    for n in range(1, 6):
        assert measured(*(step[n : n + 1] for step in steps)) is None


def test_samples_at_rest_and_lost_ones_are_left_alone() -> None:
    slopes, b = torch.full((3, 4), -2.0), torch.randn(3, 4)
    b[0], b[1, 2] = 0.0, torch.inf
    alpha = measured(*two_steps(slopes, b))
    assert alpha is not None
    assert alpha.tolist()[:2] == [1.0, 1.0]
    assert alpha[2] < 0.5


class Decaying(nn.Module):
    """F(y) = g(y) - k y."""

    def __init__(self, unknowns: int, decay: float) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(unknowns, 2 * unknowns), nn.GELU(), nn.Linear(2 * unknowns, unknowns))
        self.decay = decay

    def forward(self, y: Tensor) -> Tensor:
        return self.g(y) - self.decay * y


def solve(field: nn.Module, x: Tensor, theta: float) -> tuple[list[Tensor], int, int]:
    """The state and the gradients, and how often F and its transposed Jacobian were evaluated."""
    backward: list[rs.Solution] = []
    block = rs.ThetaBlock(rs.Autonomous(field), theta, 1, 1.0, adjoint=rs.ImplicitAdjoint(callback=backward.append))
    block.eval()
    leaf = x.clone().requires_grad_()
    trajectory = block.trajectory(leaf)
    y = trajectory.states[-1]
    gradients = torch.autograd.grad(y.square().sum(), [leaf, *field.parameters()])
    return [y.detach(), *gradients], trajectory.solutions[0].evaluations, backward[0].vjps


@pytest.mark.parametrize("unknowns", [24, 50, 1100])
@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_fields_that_decay_take_few_evaluations(monkeypatch: pytest.MonkeyPatch, unknowns: int, theta: float) -> None:
    torch.manual_seed(shifted(2))
    field, x = Decaying(unknowns, 3.0), torch.randn(6, unknowns)
    found, evaluations, products = solve(field, x, theta)
    monkeypatch.setattr("resolvent.equation.contraction.relaxation", lambda *_: None)
    before, more, more_products = solve(field, x, theta)
    assert evaluations < more
    assert evaluations + products < 0.9 * (more + more_products)
    for one, other in zip(found, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("unknowns", [24, 60])
def test_a_sample_does_not_depend_on_the_others(unknowns: int) -> None:
    """Samples that are relaxed beside samples that are not."""
    torch.manual_seed(shifted(3))
    decays = torch.tensor([0.0, 0.3, 2.0, 8.0])[:, None]
    weights = torch.randn(unknowns, unknowns) / (2 * unknowns**0.5)
    b = torch.randn(4, unknowns)

    def solved(rows: slice) -> rs.Solution:
        F = rs.Rowwise(lambda w, k: torch.tanh(w @ weights) - k * w, decays[rows])
        return rs.resolve(F, b[rows], 1.0)

    together = solved(slice(None))
    for n in range(4):
        alone = solved(slice(n, n + 1))
        torch.testing.assert_close(alone.value[0], together.value[n], rtol=1e-11, atol=1e-11)
        assert alone.steps.item() == together.steps[n].item()


def test_an_acceleration_remembers_steps_of_the_relaxed_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the second step leads, which makes up for the first."""
    noted: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr("resolvent.equation.acceleration.Acceleration.note", lambda _, *pair: noted.append(pair))
    slopes, b = torch.linspace(-3.0, -1.0, 40), torch.randn(2, 40)
    rs.resolve(lambda w: slopes * w, b, 1.0)
    w, image = noted[1]
    alpha = (image - w) / (b + slopes * w - w)
    torch.testing.assert_close(alpha, alpha[:, :1].expand_as(alpha))
    assert (alpha < 0.8).all()
