"""What becomes of a sample depends on that sample, the weights and the settings of the block alone."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import ThetaBlock

MODES = ("auto", "sequential", "parallel", "compiled")
# Solutions agree to the rounding that is left when a solve has converged quadratically.
ROUNDING = {"atol": 1e-8, "rtol": 1e-8}


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "eager")


def steep(seed: int) -> rs.fields.MLP:
    """A field for which the layers' equations have several solutions, and Newton's method fails for some samples."""
    torch.manual_seed(seed)
    field = rs.fields.MLP(2, 16, 1, nn.Tanh())
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(2.0)
    return field


def outcome(block: ThetaBlock, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, gradients by the input, and numbers of steps, sample by sample."""
    x = x.clone().requires_grad_()
    trajectory = block.trajectory(x)
    (gradient,) = torch.autograd.grad(trajectory.states[-1].square().sum(), x)
    steps = sum(solution.steps for solution in trajectory.solutions)
    return trajectory.states.detach().transpose(0, 1), gradient, torch.as_tensor(steps)


def assert_same(ours: tuple[Tensor, ...], reference: tuple[Tensor, ...], row: int) -> None:
    """The row of the one, and the only row of the other."""
    for mine, other in zip(ours[:2], reference[:2], strict=True):
        torch.testing.assert_close(mine[row], other[0], **ROUNDING)
    # Rounding may decide whether a residual is just within or just beyond its tolerance.
    assert abs(int(ours[2][row]) - int(reference[2][0])) <= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [15, 0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 14))])
def test_a_sample_alone_in_a_batch_and_in_a_crowd(mode: str, seed: int) -> None:
    field = steep(seed)
    x = 2 * torch.randn(6, 2)
    crowd = torch.cat([x, 2 * torch.randn(300, 2)])

    def run(batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return outcome(ThetaBlock(field, 0.5, 5, 5.0, mode=mode), batch)

    six, many = run(x), run(crowd)
    for i in range(6):
        alone = run(x[i : i + 1])
        assert_same(six, alone, i)
        assert_same(many, alone, i)


@pytest.mark.parametrize("mode", [*MODES[:3], pytest.param(MODES[3], marks=pytest.mark.slow)])
def test_earlier_passes_change_nothing(mode: str) -> None:
    for seed in range(2):
        field, x = steep(seed), 2 * torch.randn(6, 2)
        block, fresh = (ThetaBlock(field, 0.5, 5, 5.0, mode=mode, on_failure="ignore") for _ in range(2))
        for _ in range(3):
            block(10 * torch.randn(4, 2))
            block(x[:1])
        torch.testing.assert_close(block(x), fresh(x), **ROUNDING)


class Half(rs.fields.Field):
    """y' = y^2 + 1 has no backward Euler step from where the first entry is positive, and y' = -y always has one."""

    rowwise = True
    autonomous = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.where(y[:, :1] > 0, y**2 + 1, -y)


@pytest.mark.parametrize("memory", ["store", "checkpoint"])
@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_one_failing_sample_leaves_the_others_alone(mode: str, memory: str) -> None:
    x = torch.tensor([[-1.0, 2.0], [3.0, 1.0], [-0.5, 0.3], [2.0, 2.0]])
    block = ThetaBlock(Half(), 1.0, 4, 4.0, memory=memory, mode=mode, on_failure="ignore")
    block.eval()
    together = outcome(block, x)
    for i in (0, 2):
        assert_same(together, outcome(block, x[i : i + 1]), i)
