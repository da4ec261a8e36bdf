"""One call that tells what is going on in a block."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent import schemes
from resolvent.analysis import diagnose
from resolvent.blocks import Block, ThetaBlock
from resolvent.fields import MLP, Autonomous, Conv, Partitioned, Piecewise


def linear(matrix: torch.Tensor) -> Autonomous:
    layer = nn.Linear(len(matrix), len(matrix), bias=False)
    with torch.no_grad():
        layer.weight.copy_(matrix)
    return Autonomous(layer, rowwise=True)


def test_numbers_of_a_linear_block() -> None:
    """h A has the eigenvalues -1 and +-0.5i in an orthogonal basis, so all is known in closed form."""
    A = torch.tensor([[-2.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    diagnosis = diagnose(ThetaBlock(linear(A), 0.5, 4, 2.0, solver=rs.Newton()), torch.randn(7, 3))
    assert len(diagnosis.layers) == 4
    assert diagnosis.lipschitz == pytest.approx(1, abs=1e-6)
    for n, layer in enumerate(diagnosis.layers):
        assert layer.time == pytest.approx(0.5 * n)
        assert layer.field_norm == pytest.approx(1, rel=1e-3)
        assert layer.abscissa == pytest.approx(0, abs=1e-12)
        assert layer.growth == pytest.approx(1, abs=1e-12)
        assert layer.lipschitz == pytest.approx(1, abs=1e-6)
        assert layer.pole_distance == pytest.approx(math.hypot(2, 0.5))
        assert layer.pole == pytest.approx(2)
        assert layer.contractive
        assert (layer.failed, layer.max_iterations) == (0, 1)
        assert layer.iterations == 1
        assert 0 <= layer.residual < 1e-9


def test_spectrum_is_taken_at_the_stage() -> None:
    """F = -y^3 has the slope -3 w^2 at the stage w of the midpoint form, at y of the trapezoid form."""
    x = torch.tensor([[1.0]])
    for form, fraction in (("midpoint", 0.5), ("trapezoid", 1.0)):
        block = ThetaBlock(lambda t, y: -(y**3), 0.5, 1, 0.4, form)
        y = block(x)
        w = x + fraction * (y - x)
        assert diagnose(block, x).layers[0].abscissa == pytest.approx(float(-1.2 * w**2), rel=1e-6)


def test_each_layer_has_its_own_weights() -> None:
    pieces = [linear(torch.tensor([[slope]])) for slope in (-1.0, -2.0, 0.5)]
    layers = diagnose(ThetaBlock(Piecewise(pieces, 3.0), 1.0, 3, 3.0), torch.ones(2, 1)).layers
    assert [layer.abscissa for layer in layers] == pytest.approx([-1, -2, 0.5])
    assert [layer.lipschitz for layer in layers] == pytest.approx([1 / 2, 1 / 3, 2], rel=1e-6)
    assert [layer.pole_distance for layer in layers] == pytest.approx([2, 3, 0.5])
    assert [layer.contractive for layer in layers] == [False, False, True]  # |z| < 1, strictly


def test_iterations_and_residuals_are_those_of_the_pass() -> None:
    block, x = ThetaBlock(MLP(4, 8, 2), 0.5, 3, solver=rs.Picard()), torch.randn(6, 4)
    solutions = block.trajectory(x).solutions
    for layer, solution in zip(diagnose(block, x).layers, solutions, strict=True):
        assert layer.iterations == pytest.approx(solution.steps.double().mean().item())
        assert layer.max_iterations == int(solution.steps.max())
        assert layer.residual == float(solution.residual.max())
        assert layer.solvers == ("Picard",)


def test_failing_solves_are_reported_not_raised() -> None:
    block = ThetaBlock(linear(-30 * torch.eye(3)), 1.0, 2, 2.0, solver=rs.Picard())
    with pytest.raises(rs.ConvergenceError):
        block(torch.ones(5, 3))
    diagnosis = diagnose(block, torch.ones(5, 3))
    assert [layer.failed for layer in diagnosis.layers] == [5, 5]
    assert math.isnan(diagnosis.lipschitz)
    assert math.isnan(diagnosis.layers[0].lipschitz)
    assert "Picard needs |hF'| < 1, and it is 30" in diagnosis.advice[0]
    assert "not contractive everywhere" in diagnosis.advice[-1]
    assert block.options.on_failure == "raise"


def test_a_failure_in_any_stage_counts() -> None:
    def field(t: float | torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.as_tensor(t) < 0.5, -30.0, -0.1) * y  # the first stage is at 0.29, the second at 1

    block = Block(field, schemes.RungeKutta(schemes.tableaux.SDIRK2), 1, solver=rs.Picard())
    assert diagnose(block, torch.ones(3, 1)).layers[0].failed == 3


@pytest.mark.parametrize(
    ("slope", "theta", "words"),
    [
        (-30.0, 0.0, "outside its stability region"),
        (-0.1, 0.0, "Nothing stands out"),
        (1.95, 0.5, "within 0.05 of the pole"),
        (1.5, 0.0, "the field itself expands, by up to 2.5"),
        (12.0, 0.0, "amplified up to 13 times"),
        (-2.0, 0.5, "hardly anything of the input is left"),
        (0.3, 0.5, "contractive in all layers"),
        (-6.0, 0.5, "not contractive everywhere"),
    ],
)
def test_advice(slope: float, theta: float, words: str) -> None:
    diagnosis = diagnose(ThetaBlock(linear(slope * torch.eye(2)), theta, 2, 2.0), torch.ones(2, 2))
    assert any(words in line for line in diagnosis.advice), diagnosis.advice
    assert all(line in str(diagnosis) for line in diagnosis.advice)


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_lost_gradients_of_stiff_modes_are_noticed(theta: float) -> None:
    """One slow and one stiff mode: the layer as a whole does not forget, but backward Euler forgets the stiff mode."""
    rates = torch.tensor([-0.1, -1e4])
    block = rs.ThetaBlock(rs.Autonomous(lambda y: rates * y, rowwise=True), theta, num_steps=5)
    diagnosis = rs.analysis.diagnose(block, torch.randn(4, 2))
    x = torch.ones(1, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(block(x).sum(), x)
    assert gradient[0, 0] > 0.8
    told = [line for line in diagnosis.advice if "stiff modes" in line]
    if theta == 1:
        assert abs(gradient[0, 1]) < 1e-15
        assert diagnosis.layers[0].stiff_growth == pytest.approx(1 / 2001)
        assert "Layers 0-4" in told[0]
        assert "theta = 1/2" in told[0]
    else:
        assert abs(gradient[0, 1]) > 0.9
        assert not told
    mild = rs.analysis.diagnose(rs.ThetaBlock(rs.Autonomous(lambda y: -y), 1.0), torch.randn(4, 2))
    assert math.isnan(mild.layers[0].stiff_growth)
    assert not any("stiff modes" in line for line in mild.advice)


def test_slow_solves_are_noticed() -> None:
    diagnosis = diagnose(
        ThetaBlock(linear(-0.95 * torch.eye(2)), 1.0, 2, 2.0, solver=rs.Picard(), stopping=rs.Stopping(max_steps=1000)),
        torch.ones(2, 2),
    )
    assert any("solver steps on average" in line for line in diagnosis.advice)


def test_overflow_is_told() -> None:
    block = ThetaBlock(lambda t, y: y**3 * 1e100, 0.0, 6, 6.0)
    diagnosis = diagnose(block, torch.ones(1, 1))
    assert math.isnan(diagnosis.lipschitz)
    assert math.isnan(diagnosis.layers[-1].field_norm)
    assert not math.isnan(diagnosis.layers[0].field_norm)
    assert "on, states or slopes are not finite" in diagnosis.advice[0]


@pytest.mark.parametrize("name", ["BDF3", "ADAMS_MOULTON3"])
def test_multistep_blocks(name: str) -> None:
    layers = diagnose(Block(MLP(3, 6, 1), getattr(schemes, name), 5), torch.randn(2, 3)).layers
    assert len(layers) == 5
    assert all(layer.iterations > 0 and layer.contractive for layer in layers)


def test_symplectic_blocks_have_nothing_to_solve() -> None:
    """A stable oscillator is not called unstable, and one beyond h omega = 2 is."""
    for h_omega, stable in ((1.0, True), (2.5, False)):
        field = Partitioned(linear(torch.tensor([[h_omega]])), linear(torch.tensor([[-h_omega]])))
        diagnosis = diagnose(Block(field, schemes.VERLET, 2, 2.0), torch.ones(1, 2))
        assert all(layer.contractive is None and math.isinf(layer.pole_distance) for layer in diagnosis.layers)
        assert any("outside its stability region" in line for line in diagnosis.advice) != stable


def test_a_saddle_is_not_the_fault_of_the_scheme() -> None:
    """q' = p, p' = q has the eigenvalues 1 and -1: what grows is the field."""
    field = Partitioned(linear(torch.tensor([[1.0]])), linear(torch.tensor([[1.0]])))
    diagnosis = diagnose(Block(field, schemes.VERLET, 1, 1.0), torch.ones(1, 2))
    assert diagnosis.layers[0].growth > 2
    assert not any("outside its stability region" in line for line in diagnosis.advice)


def test_images() -> None:
    block = ThetaBlock(Conv(4, 2, size=(9, 9)), 0.5, 1, 0.5)  # 324 unknowns
    x = torch.randn(2, 4, 9, 9)
    layer = diagnose(block, x).layers[0]
    w = (x + block.trajectory(x).states[1]) / 2
    from resolvent.analysis import Jacobian

    J = 0.5 * Jacobian(lambda y: block.field(0.0, y), w.detach()).matrix().detach()
    assert layer.abscissa == pytest.approx(float(torch.linalg.eigvals(J).real.max()), abs=0.02)
    assert layer.field_norm == pytest.approx(float(torch.linalg.matrix_norm(J, 2).max()), rel=1e-3)
    assert layer.contractive


def test_learned_theta_and_horizon() -> None:
    block = ThetaBlock(MLP(3, 6, 1), 0.4, 2, nn.Parameter(torch.tensor(1.0)), learn_theta=True)
    layer = diagnose(block, torch.randn(2, 3), t0=torch.tensor([0.5, 0.25])).layers[0]
    assert layer.pole == pytest.approx(2.5)
    assert layer.time == 0.25


def test_block_is_left_alone() -> None:
    block, x = ThetaBlock(MLP(3, 6, 1, bound=1.0), 0.5, 2), torch.randn(2, 3)
    before = copy.deepcopy(block.state_dict())
    diagnose(block, x)
    assert all(torch.equal(before[name], value) for name, value in block.state_dict().items())
    assert block.training
    assert all(parameter.grad is None for parameter in block.parameters())


def test_result_is_data_and_a_table() -> None:
    diagnosis = diagnose(ThetaBlock(MLP(3, 6, 1), 0.5, 2), torch.randn(2, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        diagnosis.lipschitz = 0.0  # type: ignore[misc]
    assert dataclasses.asdict(diagnosis)["layers"][0]["failed"] == 0
    lines = str(diagnosis).splitlines()
    assert lines[0].startswith("ThetaBlock(theta=0.5, midpoint, num_steps=2, horizon=1), 2 samples of (3,)")
    header, *rows = lines[2:5]
    assert header.split()[:2] == ["layer", "t"]
    assert len({len(line) for line in (header, *rows)}) == 1


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"takes an rs.Block .* got Linear"):
        diagnose(nn.Linear(2, 2), torch.ones(1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nan or inf in 1 of its entries"):
        diagnose(ThetaBlock(MLP(2, 4, 1)), torch.tensor([[1.0, math.nan]]))


def test_inference_mode_changes_nothing_in_the_report() -> None:
    block = ThetaBlock(Conv(2, 2, size=(4, 4)), 0.5, 2, 3.0)
    x = torch.randn(3, 2, 4, 4)
    expected = str(diagnose(block, x))
    with torch.inference_mode():
        assert str(diagnose(block, x.clone())) == expected
