"""Layers that are solved for by a compiled fixed point give what they give otherwise, whatever their field is."""

import copy
import logging
import pickle
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from compiled_layers import MARKS, Gated, results
from resolvent import fields
from resolvent.blocks import ThetaBlock
from resolvent.errors import DerivativeOrderError

pytestmark = MARKS
TIGHT = rs.Stopping(rtol=1e-11, atol=1e-13)


class Forced(fields.Field):
    """F(t, y) = cos(3 t) tanh(A y), which does not know its Jacobian."""

    rowwise = True

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(0.3 * torch.randn(5, 5))

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.cos(3 * torch.as_tensor(t, dtype=y.dtype)).reshape(-1, 1) * torch.tanh(y @ self.matrix.mT)


def gated() -> fields.Field:
    return rs.Autonomous(Gated(6))


def plain() -> fields.Field:
    return rs.Autonomous(nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 12)))


def normalised() -> fields.Field:
    return fields.Bounded(fields.MLP(12, 8, 1, nn.Tanh(), bound=1.0), -1.0, 0.5).eval()


def convolution() -> fields.Field:
    return rs.Autonomous(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)))


def linear_part() -> fields.Field:
    """Layers of 300 unknowns make no group; its fixed point is that of N in F(y) = -2 y + N(y)."""

    class Damped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(300, 300)

        def forward(self, y: Tensor) -> Tensor:
            return -2 * y + torch.tanh(self.linear(y))

    return rs.Autonomous(Damped(), linear_part=-2.0)


def pair(field: fields.Field, theta: float = 0.5, horizon: float | Tensor = 1.0, layers: int = 4) -> list[ThetaBlock]:
    """The same layers compiled, and one after the other."""
    return [ThetaBlock(field, theta, layers, horizon, stopping=TIGHT, mode=mode) for mode in ("compiled", "sequential")]


def kinds_compiled(block: ThetaBlock) -> set[object]:
    """Of the functions: "backward", and whether others record a graph."""
    return {kind for _, _, kind, _ in block.strategy.fixed_point.functions}


@pytest.mark.parametrize(
    ("make", "shape", "theta", "t0"),
    [
        (gated, (6,), 1.0, 0.0),
        (plain, (12,), 0.5, 0.0),
        (normalised, (12,), 0.3, 0.0),
        (Forced, (5,), 0.5, torch.tensor([0.0, 0.1, 0.4, 0.2, 0.6])),
        (convolution, (2, 3, 4), 0.5, 0.0),
        (linear_part, (300,), 0.5, 0.0),
    ],
    ids=["own forward", "plain", "normalised", "own starts", "convolution", "linear part"],
)
def test_the_same_states_and_gradients(
    make: Callable[[], fields.Field], shape: tuple[int, ...], theta: float, t0: float | Tensor
) -> None:
    compiled, apart = pair(make(), theta)
    x = torch.randn(5, *shape, requires_grad=True)
    for _ in range(2):  # The first pass learns how many steps are needed.
        for ours, reference in zip(results(compiled, x, t0), results(apart, x, t0), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert kinds_compiled(compiled) == {True, "backward"}
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, t0), apart(x, t0), atol=1e-9, rtol=1e-9)
    assert False in kinds_compiled(compiled)


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_many_layers(theta: float) -> None:
    compiled, apart = pair(plain(), theta, layers=20)
    x = torch.randn(5, 12, requires_grad=True)
    results(compiled, x)
    for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert {layers for layers, *_ in compiled.strategy.fixed_point.functions} == {20}


def test_weights_that_change() -> None:
    compiled, apart = pair(normalised())
    x = torch.randn(5, 12, requires_grad=True)
    results(compiled, x)
    for _ in range(3):
        with torch.no_grad():
            for parameter in compiled.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)


def test_a_learned_horizon() -> None:
    compiled, apart = pair(plain(), horizon=nn.Parameter(torch.tensor(0.8)))
    x = torch.randn(5, 12, requires_grad=True)
    results(compiled, x)
    for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)


def test_harder_data_raise_the_number_of_steps_and_easier_ones_lower_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sine(fields.Field):
        rowwise = autonomous = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return torch.sin(y**2)

    compiled, apart = pair(Sine(), 1.0)
    easy = torch.full((2, 5), 1e-3)
    compiled(easy)
    before = compiled.strategy.fixed_point.steps
    hard = torch.linspace(-1.0, 1.0, 10).reshape(2, 5)
    for _ in range(2):
        torch.testing.assert_close(compiled(hard), apart(hard), atol=1e-9, rtol=1e-9)
    assert compiled.strategy.fixed_point.steps > before
    monkeypatch.setattr("resolvent.blocks.strategies.compiled_fixed_point._REVIEW", 2)
    for _ in range(3):
        torch.testing.assert_close(compiled(easy), apart(easy), atol=1e-9, rtol=1e-9)
    assert compiled.strategy.fixed_point.steps == before


@pytest.mark.slow
@pytest.mark.parametrize("gain", [1.0, 2.2], ids=["some", "many"])
def test_a_backward_system_that_needs_more_steps_than_the_layers(gain: float) -> None:
    """Zero is the solution at once, and says nothing about the Jacobian there. Where 32 steps are not enough, the
    groups are left to other methods."""

    class Odd(fields.Field):
        rowwise = autonomous = True

        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(gain * (0.35 * torch.eye(5) + 0.02 * torch.randn(5, 5)))

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return torch.tanh(y @ self.matrix)

    compiled, apart = pair(Odd(), 1.0, horizon=4.0)
    x = torch.zeros(3, 5, requires_grad=True)
    tried = set()
    for _ in range(20):
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
        tried.add(compiled.strategy.fixed_point.backward_steps)
    assert compiled.strategy.fixed_point.steps == 2
    assert len(tried) > 5
    assert compiled.strategy.fixed_point.pauses() == (gain > 1)


@pytest.mark.parametrize("unknowns", [5, 11])
def test_layers_that_do_not_contract_are_left_to_other_methods(unknowns: int, caplog: pytest.LogCaptureFixture) -> None:
    class Stiff(fields.Field):
        rowwise = autonomous = True

        def __init__(self) -> None:
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(50.0))

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return -self.rate * y

    compiled, apart = pair(Stiff())
    x = torch.randn(4, unknowns, requires_grad=True)
    for _ in range(8):
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert not compiled.strategy.fixed_point.functions
    assert bool(compiled.strategy.newton.functions) == (unknowns <= 10)
    assert sum("other methods" in record.getMessage() for record in caplog.records) == 1


def test_fields_that_the_compiler_does_not_take(caplog: pytest.LogCaptureFixture) -> None:
    """Which piece is active depends on the data."""
    compiled, apart = pair(fields.Piecewise([Forced(), Forced()], 1.0))
    x = torch.randn(4, 5, requires_grad=True)
    for _ in range(5):
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert not compiled.strategy.fixed_point.functions
    assert not compiled.strategy.newton.functions
    refusals = [record.getMessage() for record in caplog.records if "cannot be compiled" in record.getMessage()]
    assert len(refusals) == 2
    assert "the fixed point" in refusals[0]
    assert "Newton's method" in refusals[1]


def test_a_backward_system_that_the_compiler_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no.")

    compiled, apart = pair(plain())
    x = torch.randn(4, 12, requires_grad=True)
    compiled(x)
    monkeypatch.setattr("resolvent.blocks.strategies.compiled_fixed_point.solve_transposed", refuse)
    for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)


def test_small_gradients_are_not_lost() -> None:
    compiled, apart = (
        ThetaBlock(copy.deepcopy(gated()).float(), 0.5, 4, 1.0, mode=mode) for mode in ("compiled", "sequential")
    )
    apart.load_state_dict(compiled.state_dict())
    x = torch.randn(5, 6, dtype=torch.float32, requires_grad=True)
    compiled(x)
    ours, reference = (torch.autograd.grad((1e-30 * block(x)).sum(), x)[0] for block in (compiled, apart))
    torch.testing.assert_close(1e30 * ours, 1e30 * reference, atol=1e-5, rtol=1e-5)


def test_those_who_observe_and_count_solves_are_told() -> None:
    compiled, _ = pair(plain())
    policy = rs.Mask()
    compiled = ThetaBlock(compiled.field, 0.5, 4, 1.0, on_failure=policy, mode="compiled")
    x = torch.randn(5, 12, requires_grad=True)
    compiled(x)
    seen: list[rs.Solution] = []
    compiled.options = copy.copy(compiled.options)
    object.__setattr__(compiled.options, "observe", seen.append)
    before = policy.seen
    compiled(x).sum().backward()
    assert [solution.linear for solution in seen] == [False, True]
    assert all(solution.all_converged for solution in seen)
    assert seen[0].value.shape == (5, 4, 12)
    assert policy.seen - before == 5 * 4


def test_second_derivatives_are_refused() -> None:
    compiled, _ = pair(plain())
    x = torch.randn(5, 12, requires_grad=True)
    for _ in range(2):
        with pytest.raises(DerivativeOrderError, match="first derivatives only"):
            torch.autograd.grad(compiled(x).sum(), x, create_graph=True)


def test_failure_is_as_loud() -> None:
    class Rootless(fields.Field):
        rowwise = autonomous = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return y**2 + 1

    block = ThetaBlock(Rootless(), 1.0, 4, 4.0, mode="compiled")
    block(torch.full((2, 5), -1e-3), horizon=1e-3)
    with pytest.raises(rs.ConvergenceError, match="did not converge"):
        block(torch.ones(2, 5))


def test_large_states_are_not_compiled_which_the_log_says_once(caplog: pytest.LogCaptureFixture) -> None:
    field = rs.Autonomous(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh()))
    compiled, apart = pair(field, horizon=0.1)
    x = torch.randn(2, 2, 24, 24)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), apart(x))
    assert not compiled.strategy.fixed_point.functions
    assert sum("not compiled" in record.getMessage() for record in caplog.records) == 1


def test_eight_batch_sizes_are_compiled_for(caplog: pytest.LogCaptureFixture) -> None:
    compiled, apart = pair(plain())
    for samples in range(1, 12):
        x = torch.randn(samples, 12, requires_grad=True)
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert len({shape for *_, shape in compiled.strategy.fixed_point.functions}) == 8
    assert sum("other shapes" in record.getMessage() for record in caplog.records) == 1


def test_compilations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "resolvent")
    compiled, _ = pair(plain())
    x = torch.randn(5, 12, requires_grad=True)
    for _ in range(3):
        compiled(x).sum().backward()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "fixed-point steps of 4 layers for (5, 12)" in messages[0]
    assert "backward steps" in messages[1]


def test_it_can_be_copied_and_stored_after_it_was_compiled() -> None:
    block, _ = pair(rs.Autonomous(nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 12))))
    x = torch.randn(6, 12)
    block(x)
    expected = block(x)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        torch.testing.assert_close(other(x), expected)
        assert kinds_compiled(other)


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, Forced], ids=["autonomous", "time"])
def test_the_default_compiler(make: Callable[[], fields.Field], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "inductor")
    compiled, apart = pair(make(), horizon=0.5)
    x = torch.randn(5, 6 if make is gated else 5, requires_grad=True)
    for _ in range(2):
        for ours, reference in zip(results(compiled, x), results(apart, x), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
