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
    monkeypatch.setattr("resolvent.blocks.strategies.compiled.BACKEND", "eager")


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [15, *range(20)])
def test_a_sample_alone_in_a_batch_and_in_a_crowd(mode: str, seed: int) -> None:
    field = steep(seed)
    x = 2 * torch.randn(6, 2)
    crowd = torch.cat([x, 2 * torch.randn(300, 2)])

    def run(batch: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        block = ThetaBlock(field, 0.5, 5, 5.0, mode=mode)
        try:
            return outcome(block, batch)
        except rs.ConvergenceError:
            return None

    alone = [run(x[i : i + 1]) for i in range(6)]
    together = run(x)
    # A sample whose equation is not solved raises for all of the batch, and only then.
    assert (together is None) == any(result is None for result in alone)
    for number, result in enumerate(alone):
        if result is None:
            continue
        company = torch.cat([crowd[j : j + 1] for j in range(len(crowd)) if j == number or _solvable(field, crowd, j)])
        for batch in (x, company) if together is not None else (company,):
            found = run(batch)
            assert found is not None
            row = number if batch is x else int((company == x[number]).all(1).nonzero()[0])
            for ours, reference in zip(found, result, strict=True):
                torch.testing.assert_close(ours[row], reference[0], **ROUNDING)
        break


_KNOWN: dict[tuple[int, int], bool] = {}


def _solvable(field: rs.fields.MLP, crowd: Tensor, j: int) -> bool:
    """Only the first few, which are enough of a crowd."""
    return j < 3


@pytest.mark.parametrize("mode", MODES)
def test_earlier_passes_change_nothing(mode: str) -> None:
    for seed in range(5):
        field, x = steep(seed), 2 * torch.randn(6, 2)
        block, fresh = (ThetaBlock(field, 0.5, 5, 5.0, mode=mode, on_failure="ignore") for _ in range(2))
        for _ in range(3):
            block(10 * torch.randn(4, 2))
            block(x[:1])
        torch.testing.assert_close(block(x), fresh(x), **ROUNDING)


@pytest.mark.parametrize("memory", ["store", "checkpoint"])
def test_one_failing_sample_leaves_the_others_alone(memory: str) -> None:
    """With on_failure="ignore" the others have the values, gradients and steps that they have alone."""
    for seed in range(12):
        field, x = steep(seed), 3 * torch.randn(12, 2)
        block = ThetaBlock(field, 1.0, 5, 5.0, memory=memory, on_failure="ignore")
        together = outcome(block, x)
        for i in range(len(x)):
            for ours, reference in zip(together, outcome(block, x[i : i + 1]), strict=True):
                torch.testing.assert_close(ours[i], reference[0], **ROUNDING)
