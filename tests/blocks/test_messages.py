"""Messages about groups of layers speak of the user's state and batch."""

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.equation.failure import Defer
from seeding import shifted

MODES = ["auto", "sequential", "parallel"]


class Nothing(nn.Module):
    """Declares that it may be grouped, and returns no tensor."""

    rowwise = autonomous = True

    def forward(self, t: Any, y: Tensor) -> Any:
        return None


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [5, 100])
@pytest.mark.parametrize(("width", "wrong"), [(4, 3), (4, 1), (2, 3), (2, 1), (1, 2)])
def test_a_field_of_another_shape(width: int, wrong: int, batch: int, mode: str, training: bool) -> None:
    x = torch.randn(batch, width)
    for linear in (nn.Linear(width, wrong), nn.Sequential(nn.Linear(width, 3), nn.Sigmoid(), nn.Linear(3, wrong))):
        for theta in (0.5, 1.0):
            block = rs.ThetaBlock(rs.Autonomous(linear), theta, mode=mode).train(training)
            with pytest.raises(ValueError, match=rf"it took \({batch}, {width}\) and gave \({batch}, {wrong}\)\.$"):
                block(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [2, 4])
def test_a_field_that_returns_no_tensor(width: int, mode: str) -> None:
    with pytest.raises(ValueError, match=rf"it took \(\d+, {width}\) and gave NoneType"):
        rs.ThetaBlock(Nothing(), mode=mode)(torch.randn(5, width))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("reduce", "gave"), [(lambda y: y.sum(), r"\(\)"), (lambda y: y[:1], r"\(1, 4\)")])
def test_a_field_of_other_rows(reduce: Callable[[Tensor], Tensor], gave: str, mode: str) -> None:
    with pytest.raises(ValueError, match=rf"it took \(\d+, 4\) and gave {gave}\.$"):
        rs.ThetaBlock(rs.extending.VectorField(lambda t, y: reduce(y), True, True), mode=mode).eval()(torch.randn(5, 4))


def test_stages_of_another_shape() -> None:
    block = rs.Block(rs.Autonomous(nn.Linear(4, 3)), rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU5)).eval()
    with pytest.raises(ValueError, match=r"it took \(5, 4\) and gave \(5, 3\)\.$"):
        block(torch.randn(5, 4))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("policy", ["raise", "warn", "ignore", "mask"])
def test_input_that_is_not_finite(policy: str, width: int, mode: str) -> None:
    torch.manual_seed(shifted(0))
    block = rs.ThetaBlock(rs.Autonomous(nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, width))), mode=mode)
    block.options = rs.ThetaBlock(block.field, on_failure=policy).options
    x = torch.randn(5, width)
    x[2, 1] = torch.nan
    place = "layer 1" if mode == "sequential" else "layers 1 to 5"
    message = (
        rf"^the state must be finite, but 1 of its {5 * width} entries is NaN or infinite, the first in sample 2, "
    )
    with pytest.raises(ValueError, match=rf"{message}at the start of {place} of 5 \(t = 0\)"):
        block(x)


def test_right_hand_sides_and_steps_that_are_not_finite_name_the_sample() -> None:
    b = torch.zeros(4, 3)
    b[1:, 2] = torch.inf
    with pytest.raises(ValueError, match=r"b must be finite, but 3 of its 12 entries .* the first in sample 1"):
        rs.resolve(torch.tanh, b, 0.5)
    with pytest.raises(ValueError, match=r"tau must be finite, but 1 of its 4 entries .* in sample 3"):
        rs.resolve(torch.tanh, torch.zeros(4, 3), torch.tensor([0.5, 0.5, 0.5, torch.nan]))
    with pytest.raises(ValueError, match="tau must be finite, but 1 of its 1 entries is NaN or infinite"):
        rs.resolve(torch.tanh, torch.zeros(4, 3), torch.tensor(torch.nan))


class Blow(nn.Module):
    """Has no implicit solution for large states."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0))

    def forward(self, y: Tensor) -> Tensor:
        return self.a * y * y + 1


def hopeless(width: int) -> Tensor:
    """Sample 5 has no solution; sample 1 does not contract in a group, but has one."""
    x = torch.full((7, width), -1.0)
    x[5], x[1] = 5.0, -9.0
    return x


@pytest.mark.parametrize("mode", ["sequential", "auto"])
@pytest.mark.parametrize("width", [2, 3])
def test_samples_are_those_of_the_batch(width: int, mode: str) -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(Blow()), 1.0, 4, 2.0, mode=mode), hopeless(width)
    with pytest.raises(rs.ConvergenceError, match=r"layer 1 of 4 .* 1 of 7 samples \(.*; sample 5\)") as caught:
        block(x)
    solution = caught.value.solution
    for part in (solution.status, solution.residual, solution.steps, solution.solver_index):
        assert part.shape == (7,)
    assert (~solution.converged).nonzero().flatten().tolist() == [5]
    assert solution.value.shape == x.shape
    good = [0, 1, 2, 3, 4, 6]
    w = solution.value[good]
    torch.testing.assert_close(w, x[good] + 0.5 * (w * w + 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["sequential", "auto"])
def test_samples_of_warnings_and_deferred_errors(mode: str) -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(Blow()), 1.0, 4, 2.0, mode=mode, on_failure="warn"), hopeless(3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        block(x)
    assert re.search(r"layer 1 of 4 .* 1 of 7 samples \(.*; sample 5\)", str(found[0].message))
    block.options = dataclasses.replace(block.options, on_failure=Defer())
    block(x)
    error = block.options.on_failure.error
    assert "sample 5)" in str(error)
    assert (~error.solution.converged).nonzero().flatten().tolist() == [5]
    assert error.solution.status.shape == (7,)


def test_in_a_later_layer_of_a_later_group() -> None:
    """The state of sample 5 grows until its equation has no solution."""
    x = torch.full((7, 3), -1.0)
    x[5] = 0.8
    found = []
    for mode in (rs.blocks.LayerByLayer(), rs.blocks.AllTogether(most_unknowns=9)):
        with pytest.raises(rs.ConvergenceError) as caught:
            rs.ThetaBlock(rs.Autonomous(Blow()), 1.0, 12, 1.2, mode=mode)(x)
        found.append(re.findall(r"layer \d+ of 12|\d of \d samples|sample \d", str(caught.value)))
        assert (~caught.value.solution.converged).nonzero().flatten().tolist() == [5]
    assert found[0] == found[1]
    assert found[0] == ["layer 6 of 12", "1 of 7 samples", "sample 5"]
