"""Layers that are solved for by a compiled Newton's method give what they give otherwise."""

import copy
import pickle
import shutil

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from compiled_layers import MARKS, Gated, results
from resolvent import fields
from resolvent.blocks import ThetaBlock

pytestmark = MARKS
TIGHT = rs.Stopping(rtol=1e-12, atol=1e-13)


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.slow
def test_the_default_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "inductor")
    field, x = fields.MLP(2, 4, 1, nn.ReLU()), torch.randn(5, 2, requires_grad=True)
    compiled, apart = (ThetaBlock(field, 0.5, 3, 0.6, mode=mode) for mode in ("compiled", "sequential"))
    results(compiled, x)
    for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-8, rtol=1e-8)


class Forced(fields.Field):
    """F(t, y) = -cos(3 t) tanh(A y), with its Jacobian."""

    rowwise = True

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 3))

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -self._force(t, y) * torch.tanh(y @ self.matrix.mT)

    @property
    def value_and_jacobian(self):
        return self._value_and_jacobian

    def _value_and_jacobian(self, t: float | Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        force, value = self._force(t, y), torch.tanh(y @ self.matrix.mT)
        return -force * value, -(force * (1 - value**2)).unsqueeze(-1) * self.matrix

    @staticmethod
    def _force(t: float | Tensor, y: Tensor) -> Tensor:
        return torch.cos(3 * torch.as_tensor(t, dtype=y.dtype)).reshape(-1, 1)


def bounded() -> fields.Bounded:
    return fields.Bounded(fields.MLP(3, 8, 1, nn.Tanh(), bound=1.0), -5.0, 0.5)


def steps_compiled(block: ThetaBlock) -> set[int]:
    return {steps for _, steps, _ in block.strategy.newton.functions}


@pytest.mark.parametrize(
    ("make", "theta", "t0"),
    [
        pytest.param(lambda: fields.MLP(3, 8, 1), 0.5, 0.0, marks=pytest.mark.slow),
        (bounded, 1.0, 0.0),
        (lambda: rs.Autonomous(Gated(3)), 0.5, 0.0),
        (Forced, 0.3, torch.tensor([0.0, 0.1, 0.4, 0.2, 0.6])),
    ],
    ids=["autonomous", "normalised", "own forward", "own starts"],
)
def test_the_same_states_and_gradients(make: type, theta: float, t0: float | Tensor) -> None:
    field, x = make(), torch.randn(5, 3, requires_grad=True)
    field.eval()
    compiled, apart = (
        ThetaBlock(field, theta, 6, 1.2, stopping=TIGHT, mode=mode) for mode in ("compiled", "sequential")
    )
    first, second = results(compiled, x, t0), results(compiled, x, t0)
    assert steps_compiled(compiled)
    for learned, ours, reference in zip(first, second, results(apart, x, t0), strict=True):
        torch.testing.assert_close(learned, reference, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, t0), second[0][-1], atol=1e-9, rtol=1e-9)


@pytest.mark.slow
def test_learned_theta_and_horizon() -> None:
    field, x = fields.MLP(3, 8, 1), torch.randn(5, 3, requires_grad=True)
    compiled, apart = (
        ThetaBlock(field, 0.4, 6, nn.Parameter(torch.tensor(1.2)), stopping=TIGHT, learn_theta=True, mode=mode)
        for mode in ("compiled", "sequential")
    )
    results(compiled, x)
    for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)


class Cubic(fields.Field):
    """-y^3: the further out, the more steps of Newton's method."""

    rowwise = True
    autonomous = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -(y**3)

    value_and_jacobian = property(lambda self: lambda t, y: (self(t, y), torch.diag_embed(-3 * y**2)))


@pytest.mark.slow
def test_harder_data_are_solved_as_usual_and_teach_the_number_of_steps() -> None:
    block, reference = (ThetaBlock(Cubic(), 1.0, 4, 1.0, mode=mode) for mode in ("compiled", "sequential"))
    easy, hard = torch.linspace(-0.01, 0.01, 6)[:, None], torch.linspace(-3.0, 3.0, 6)[:, None]
    block(easy)
    before = block.strategy.newton.steps[0]
    block(easy)
    for _ in range(2):
        torch.testing.assert_close(block(hard), reference(hard), atol=1e-8, rtol=1e-8)
    assert block.strategy.newton.steps[0] > before
    assert steps_compiled(block) == {before, block.strategy.newton.steps[0]}


def test_the_solution_is_accounted_for() -> None:
    block = ThetaBlock(fields.MLP(2, 8, 1), 0.5, 4, 1.0, mode="compiled")
    x = torch.randn(6, 2)
    with torch.no_grad():
        usual, compiled = block.trajectory(x).solutions[0], block.trajectory(x).solutions[0]
    assert steps_compiled(block)
    assert compiled.all_converged
    assert compiled.converged.all()
    assert torch.equal(compiled.steps, usual.steps)
    torch.testing.assert_close(compiled.value, usual.value, atol=1e-9, rtol=1e-9)
    assert (compiled.residual <= 1e-9).all()


@pytest.mark.slow
def test_it_can_be_copied_and_stored_after_it_was_compiled() -> None:
    block = ThetaBlock(fields.MLP(2, 8, 1), 0.5, 4, 1.0, mode="compiled")
    x = torch.randn(6, 2)
    with torch.no_grad():
        block(x)
        expected = block(x)
        for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
            torch.testing.assert_close(other(x), expected)
            assert steps_compiled(other) == steps_compiled(block)


def test_failure_is_as_loud() -> None:
    class Rootless(fields.Field):
        rowwise = True
        autonomous = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return y**2 + 1

        value_and_jacobian = property(lambda self: lambda t, y: (self(t, y), torch.diag_embed(2 * y)))

    with pytest.raises(rs.ConvergenceError, match="did not converge"):
        ThetaBlock(Rootless(), 1.0, 4, 4.0, mode="compiled")(torch.ones(2, 1))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"form": "trapezoid"}, "midpoint form"),
        ({"adjoint": rs.ImplicitAdjoint(order=2)}, "first derivatives"),
    ],
)
def test_what_cannot_be_compiled(options: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ThetaBlock(**{"field": fields.MLP(2, 4, 1), "mode": "compiled", **options})


def test_normalised_weights_are_those_of_the_pass() -> None:
    field, x = bounded(), torch.randn(5, 3, requires_grad=True)
    compiled, apart = (ThetaBlock(field, 0.5, 6, 1.2, stopping=TIGHT, mode=mode) for mode in ("compiled", "sequential"))
    compiled(x)
    for _ in range(3):
        with torch.no_grad():
            for parameter in field.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert steps_compiled(compiled)


@pytest.mark.parametrize("memory", ["store", "checkpoint"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_field_that_is_compiled_itself(in_place: bool, memory: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = rs.spectral.spectral_norm(nn.Linear(3, 5)), nn.Linear(5, 3)

        def forward(self, y: Tensor) -> Tensor:
            return self.outer(torch.tanh(self.inner(y)))

    net, x = Net(), torch.randn(4, 3, requires_grad=True)
    options = {"memory": memory, "solver": rs.Anderson(), "stopping": TIGHT}
    expected = results(ThetaBlock(rs.Autonomous(net), 0.5, 3, **options), x)
    if in_place:
        net.compile(backend="eager")
    compiled = rs.Autonomous(net if in_place else torch.compile(net, backend="eager"))
    for ours, reference in zip(results(ThetaBlock(compiled, 0.5, 3, **options), x), expected, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
