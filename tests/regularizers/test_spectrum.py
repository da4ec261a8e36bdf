"""What the terms do to the spectrum of a field when they are minimised."""

import pytest
import torch
from torch import Tensor

from regularizers.trajectories import HORIZON, STEPS
from resolvent.blocks import ThetaBlock
from resolvent.fields import MLP, Field, Piecewise
from resolvent.regularizers import TrajectoryPenalty
from seeding import shifted

BATCH = 8


def spectrum(field: Field, block: ThetaBlock, x: Tensor) -> Tensor:
    """The eigenvalues of the Jacobian at all states of the pass: (points * batch, d), complex."""
    trajectory = block.trajectory(x)
    jacobians = [
        torch.func.vmap(torch.func.jacrev(lambda row, t=float(t): field(t, row[None])[0]))(states)
        for t, states in zip(trajectory.times, trajectory.states.detach(), strict=True)
    ]
    return torch.linalg.eigvals(torch.cat(jacobians).detach())


def minimise(penalty: TrajectoryPenalty, field: Field) -> tuple[Tensor, Tensor]:
    """The spectrum before and after a short optimisation, as in training: new states and new probes in each step."""
    block = ThetaBlock(field, 0.0, STEPS, HORIZON)  # Without solves: what is tested is what the penalty does to F.
    x = torch.randn(BATCH, 3)
    before = spectrum(field, block, x)
    optimiser = torch.optim.Adam(field.parameters(), lr=0.02)
    for _ in range(40):
        optimiser.zero_grad()
        penalty(field, block.trajectory(x)).total.backward()
        optimiser.step()
    return before, spectrum(field, block, x)


@pytest.fixture(params=["shared", "piecewise"])
def field(request):
    if request.param == "shared":
        return MLP(3, 8, 1)
    return Piecewise([MLP(3, 8, 1) for _ in range(STEPS)], HORIZON)


def test_the_divergence_term_moves_the_spectrum_left(field):
    before, after = minimise(TrajectoryPenalty(divergence=1.0), field)
    assert after.real.mean() < before.real.mean() - 2
    # All states but the first, where (t/T)^p is 0: piecewise weights are their own there and do not change.
    assert (after.real.mean(1) < before.real.mean(1) - 0.5)[BATCH:].all()
    assert after.real.quantile(0.9) < before.real.quantile(0.9)


def test_the_jacobian_term_shrinks_the_spectrum(field):
    before, after = minimise(TrajectoryPenalty(jacobian=1.0), field)
    assert after.abs().max() < 0.1 * before.abs().max()
    assert (after.abs().amax(1) < before.abs().amax(1)).all()


def test_together_they_dissipate_and_keep_the_spectrum_bounded():
    spread, level = [], []
    for jacobian in (0.0, 1.0):
        torch.manual_seed(shifted(0))
        _, after = minimise(TrajectoryPenalty(divergence=1.0, jacobian=jacobian), MLP(3, 8, 1))
        spread.append(after.abs().max())
        level.append(after.real.mean())
    assert spread[1] < spread[0]
    assert level[0] < level[1] < 0
