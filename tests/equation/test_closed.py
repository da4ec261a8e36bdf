"""The gradients of what F closes over: what they cost, and that they are right in every case that is told apart."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn.utils.parametrizations import spectral_norm

import resolvent as rs
from resolvent.equation import attachment
from resolvent.equation.adjoint import AttachedAdjoint
from resolvent.equation.approximate_adjoint import NeumannAdjoint, OneStepAdjoint, PhantomAdjoint
from seeding import shifted

TIGHT = rs.Stopping(rtol=1e-12, atol=1e-13)


class Counter:
    """Counts how often autograd passes a point of a graph on its way back."""

    def __init__(self) -> None:
        self.passed = 0

    def __call__(self, x: Tensor) -> Tensor:
        passed: Tensor = _Counted.apply(self, x)
        return passed


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, counter: Counter, x: Tensor) -> Tensor:
        ctx.counter = counter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        ctx.counter.passed += 1
        return None, cotangents[0]


class Scaled:
    """F(w) = slopes * w, which counts its own backward passes, and those to w and to the slopes."""

    def __init__(self, slopes: Tensor) -> None:
        self.slopes = slopes.requires_grad_()
        self.all, self.to_state, self.to_slopes = Counter(), Counter(), Counter()

    def __call__(self, w: Tensor) -> Tensor:
        return self.all(self.to_state(w) * self.to_slopes(self.slopes))


def watched(seen: list[rs.Solution], **options: Any) -> rs.ImplicitAdjoint:
    return rs.ImplicitAdjoint(callback=seen.append, **options)


def general(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every solve leave the gradients of what F closes over to the autograd engine."""
    monkeypatch.setattr("resolvent.equation.attachment.closed_tensors", lambda *arguments: None)


def named(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What every later solve finds that F closes over."""
    found, original = list[Any](), attachment.closed_tensors

    def watch(*arguments: Any) -> Any:
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(attachment, "closed_tensors", watch)
    return found


@pytest.mark.parametrize("slope", [1e-6, 3e-3, 0.03, 0.13, 0.31])
def test_the_last_product_of_a_solve_brings_the_gradients(slope: float) -> None:
    F, seen = Scaled(torch.full((20,), slope)), list[rs.Solution]()
    b = torch.randn(4, 20, requires_grad=True)
    value = rs.resolve(F, b, 1.0, adjoint=watched(seen)).value
    value.sum().backward()
    # An accelerated solve may end before it was expected to, which costs one walk more.
    early = slope > 0.1
    assert F.to_state.passed == seen[0].work.vjps
    assert F.to_state.passed <= F.all.passed <= F.to_state.passed + early
    assert F.to_slopes.passed == 1
    assert b.grad is not None
    assert F.slopes.grad is not None
    torch.testing.assert_close(b.grad, torch.full_like(b, 1 / (1 - slope)), rtol=1e-8, atol=0.0)
    expected = b.detach().sum(0) / (1 - slope) ** 2
    torch.testing.assert_close(F.slopes.grad, expected, rtol=1e-7, atol=1e-12)


def test_a_wrong_prediction_costs_a_product_and_no_accuracy() -> None:
    """Most of the residual contracts at once, a little of it slowly: the first products promise too much."""
    slopes = torch.full((20,), 1e-3)
    slopes[0] = 0.65
    F, seen = Scaled(slopes), list[rs.Solution]()
    b, g = torch.randn(4, 20, requires_grad=True), torch.ones(4, 20)
    g[:, 0] = 1e-4
    value = rs.resolve(F, b, 1.0, adjoint=watched(seen, stopping=rs.Stopping(rtol=1e-6))).value
    value.backward(g)
    assert 1 < F.to_slopes.passed <= seen[0].work.vjps
    assert b.grad is not None
    assert F.slopes.grad is not None
    u = g / (1 - slopes.detach())
    assert (b.grad - u).norm(dim=1).max() < 1e-5 * u.norm(dim=1).max()
    expected = (u * b.detach() / (1 - slopes.detach())).sum(0)
    torch.testing.assert_close(F.slopes.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("slopes", [(0.8, -0.9), (0.9, -1.5), (-20.0, 0.5)])
@pytest.mark.parametrize("linear", [None, rs.Anderson(), rs.GMRES(), rs.Neumann(), rs.BiCGStab()], ids=str)
def test_slow_and_stiff_systems(slopes: tuple[float, float], linear: Any) -> None:
    if isinstance(linear, rs.Neumann) and min(slopes) < -1:
        pytest.skip("does not converge")
    F, seen = Scaled(torch.linspace(*slopes, 60)), list[rs.Solution]()
    b = torch.randn(4, 60, requires_grad=True)
    adjoint = watched(seen, solver=linear)
    rs.resolve(F, b, 1.0, solver=rs.Anderson(memory=20), adjoint=adjoint).value.sum().backward()
    assert seen[0].all_converged
    exact = F.slopes.detach()
    assert b.grad is not None
    assert F.slopes.grad is not None
    torch.testing.assert_close(b.grad, (1 / (1 - exact)).expand(4, 60), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(F.slopes.grad, b.detach().sum(0) / (1 - exact) ** 2, rtol=1e-5, atol=1e-6)


def test_fixed_steps_take_the_gradients_with_the_last() -> None:
    F, seen = Scaled(torch.full((20,), 0.3)), list[rs.Solution]()
    b = torch.randn(4, 20, requires_grad=True)
    adjoint = watched(seen, solver=rs.Neumann())
    options: Any = {"stopping": rs.FixedSteps(5), "solver": rs.Picard(), "on_failure": "ignore"}
    rs.resolve(F, b, 1.0, adjoint=adjoint, **options).value.sum().backward()
    assert F.all.passed == seen[0].work.vjps == 6
    assert F.to_slopes.passed == 1


def test_fixed_steps_of_other_solvers_leave_the_gradients_to_the_end() -> None:
    """Anderson's method may go back to its best iterate, and nobody looks."""
    F = Scaled(torch.full((20,), 0.3))
    options: Any = {"stopping": rs.FixedSteps(5), "solver": rs.Anderson(), "on_failure": "ignore"}
    adjoint = rs.ImplicitAdjoint(solver=rs.Anderson())
    rs.resolve(F, torch.randn(4, 20), 1.0, adjoint=adjoint, **options).value.sum().backward()
    assert F.to_slopes.passed == 1
    assert F.to_state.passed == 6


@pytest.mark.parametrize("adjoint", [OneStepAdjoint(), NeumannAdjoint(3), PhantomAdjoint(3)], ids=str)
def test_approximate_adjoints_do_not_compute_a_gradient_of_the_point(adjoint: AttachedAdjoint) -> None:
    products = {"OneStepAdjoint": 0, "NeumannAdjoint": 3, "PhantomAdjoint": 2}[type(adjoint).__name__]
    F = Scaled(torch.full((20,), 0.3))
    rs.resolve(F, torch.randn(4, 20), 1.0, adjoint=adjoint).value.sum().backward()
    assert F.to_state.passed == products
    assert F.to_slopes.passed == 1


@pytest.mark.parametrize("by", ["grad", "backward"])
def test_gradients_of_the_input_alone_do_not_pay_for_others(by: str) -> None:
    F = Scaled(torch.full((20,), 0.13))
    b = torch.randn(4, 20, requires_grad=True)
    value = rs.resolve(F, b, 1.0).value
    if by == "grad":
        torch.autograd.grad(value.sum(), b)
    else:
        value.sum().backward(inputs=[b])
    assert F.to_slopes.passed == 0
    assert F.slopes.grad is None


def test_gradients_of_the_weights_alone() -> None:
    F, b = Scaled(torch.full((20,), 0.13)), torch.randn(4, 20, requires_grad=True)
    value = rs.resolve(F, b, 1.0).value
    (gradient,) = torch.autograd.grad(value.sum(), F.slopes)
    torch.testing.assert_close(gradient, b.detach().sum(0) / (1 - 0.13) ** 2, rtol=1e-7, atol=1e-12)
    assert b.grad is None


def test_a_first_step_that_solves_needs_no_further_evaluation() -> None:
    module = nn.Linear(40, 40)
    with torch.no_grad():
        module.weight.mul_(1e-3)
    calls = list[int]()

    def F(w: Tensor) -> Tensor:
        calls.append(1)
        image: Tensor = module(w)
        return image

    b = torch.randn(4, 40, requires_grad=True)
    solution = rs.resolve(F, b, 1e-2, stopping=rs.Stopping(rtol=1e-4, atol=0.0))
    assert solution.steps.tolist() == [1] * 4
    assert len(calls) == solution.evaluations == 2


def weights(n: int = 12) -> Tensor:
    return (0.4 * torch.linalg.qr(torch.randn(n, n)).Q).requires_grad_()


class Holder:
    """An object that no search looks into."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def of_leaf(W: Tensor, x: Tensor) -> Any:
    return lambda w: torch.tanh(w @ W)


def of_computed(W: Tensor, x: Tensor) -> Any:
    U = W.cos()
    return lambda w: torch.tanh(0.3 * w @ U)


def of_computed_and_its_leaf(W: Tensor, x: Tensor) -> Any:
    U = 0.3 * W.cos()
    return lambda w: 0.5 * torch.tanh(w @ W + w @ U)


def of_one_computed_from_another(W: Tensor, x: Tensor) -> Any:
    U = 0.3 * W.cos()
    V = U.sin()
    return lambda w: 0.5 * torch.tanh(w @ V + w @ U)


def of_hidden(W: Tensor, x: Tensor) -> Any:
    holder = Holder(W.sin())
    return lambda w: torch.tanh(w @ holder.tensor)


def of_input(W: Tensor, x: Tensor) -> Any:
    return lambda w: torch.tanh(w @ W + x)


def of_condition(W: Tensor, x: Tensor) -> Any:
    return rs.Rowwise(lambda w, c: torch.tanh(w @ W + c), x @ W.sin())


def of_hooked(W: Tensor, x: Tensor) -> Any:
    U = W.sin()
    U.register_hook(lambda g: 2 * g)
    U.retain_grad()
    return lambda w: torch.tanh(w @ U)


def of_constant(W: Tensor, x: Tensor) -> Any:
    return lambda w: x.sin()


def of_itself(W: Tensor, x: Tensor) -> Any:
    return lambda w: w * 0.5


def of_both_parts(W: Tensor, x: Tensor) -> Any:
    n = W.shape[0] // 2
    first, second = W.sin().split(n)
    return lambda w: torch.tanh(w[:, :n] @ first - w[:, n:] @ second)


FIELDS = [
    of_leaf,
    of_computed,
    of_computed_and_its_leaf,
    of_one_computed_from_another,
    of_hidden,
    of_input,
    of_condition,
    of_hooked,
    of_constant,
    of_itself,
    of_both_parts,
]


@pytest.mark.parametrize("kind", ["float", "learned", "rows", "constant rows"])
@pytest.mark.parametrize("field", FIELDS)
def test_gradients_equal_those_of_the_autograd_engine(
    field: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(shifted(5))
    W, x, direction = weights(), torch.randn(3, 12, requires_grad=True), torch.randn(3, 12)
    learned = torch.tensor(0.7 if kind in ("float", "learned") else [0.2, 0.5, 0.9], requires_grad=True)

    def gradients() -> tuple[Tensor | None, ...]:
        start, tau = 2 * x, 0.8 if kind == "float" else learned * 1.1
        tau = tau.detach() if kind.startswith("constant") else tau
        value = rs.resolve(field(W, x), start, tau, stopping=TIGHT).value
        return torch.autograd.grad((direction * value.sin()).sum(), (x, W, learned), allow_unused=True)

    ours = gradients()
    general(monkeypatch)
    for got, expected in zip(ours, gradients(), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("field", [of_leaf, of_computed, of_input, of_condition, of_both_parts])
def test_gradients_by_finite_differences(field: Callable[..., Any]) -> None:
    def layer(W: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return rs.resolve(field(W, x), x.cos(), tau, stopping=TIGHT).value

    x = torch.randn(2, 4, requires_grad=True)
    assert gradcheck(layer, (weights(4), x, torch.tensor(0.6, requires_grad=True)))


def test_a_hook_of_a_parameter_runs_once() -> None:
    module, seen = nn.Linear(12, 12), list[Tensor]()
    with torch.no_grad():
        module.weight.copy_(weights())
    b = torch.randn(3, 12)
    rs.resolve(module, b, 0.5).value.sum().backward()
    assert module.weight.grad is not None
    plain, module.weight.grad = module.weight.grad, None

    def halve(gradient: Tensor) -> Tensor:
        seen.append(gradient)
        return 0.5 * gradient

    module.weight.register_hook(halve)
    rs.resolve(module, b, 0.5).value.sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(module.weight.grad, 0.5 * plain)


@pytest.mark.parametrize("kind", ["leaf", "computed", "retained"])
def test_a_hook_that_is_registered_after_the_solve_runs_once(kind: str) -> None:
    W, b, seen = weights(), torch.randn(3, 12), list[Tensor]()

    def gradient(late: bool) -> Tensor:
        U = W if kind == "leaf" else W.sin()
        value = rs.resolve(lambda w: torch.tanh(w @ U), b, 0.5, stopping=TIGHT).value
        if late and kind == "retained":
            U.retain_grad()
        elif late:
            U.register_hook(lambda g: seen.append(g) or 0.5 * g)
        (found,) = torch.autograd.grad(value.sum(), W)
        if late and kind == "retained":
            assert U.grad is not None
            torch.testing.assert_close(U.grad * W.cos(), found)
        return found

    plain = gradient(late=False)
    torch.testing.assert_close(gradient(late=True), plain if kind == "retained" else 0.5 * plain)
    assert len(seen) == (kind != "retained")


@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_normalised_weights_of_a_block_come_with_the_last_product(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed once a pass, so that they are no leaves."""
    block = rs.ThetaBlock(
        rs.Autonomous(nn.Sequential(spectral_norm(nn.Linear(40, 40)), nn.Tanh(), nn.Linear(40, 40))), 0.5, 3, mode=mode
    ).eval()
    x, found = torch.randn(5, 40), named(monkeypatch)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(block(x).square().sum(), list(block.parameters())))

    ours = gradients()
    assert found
    assert all(tensors is not None and len(tensors) == 4 for tensors in found)
    general(monkeypatch)
    for got, expected in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)


def test_weights_are_found_behind_the_casts_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast casts a weight once for all layers, so that the cast is older than the evaluation of most."""
    net = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40)).float()
    block = rs.ThetaBlock(rs.Autonomous(net), 0.5, 3, horizon=0.5, mode="sequential")
    x, found = torch.randn(5, 40, dtype=torch.float32), named(monkeypatch)

    def gradients() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = block(x)
        return list(torch.autograd.grad(value.float().square().sum(), list(block.parameters())))

    ours = gradients()
    assert [tensors is not None and len(tensors) for tensors in found] == [4, 4, 4]
    general(monkeypatch)
    for got, expected in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.1, atol=0.05 * float(expected.abs().max()))


def test_the_graph_is_freed_unless_it_is_retained() -> None:
    F, b = Scaled(torch.full((20,), 0.13)), torch.randn(4, 20, requires_grad=True)
    value = rs.resolve(F, b, 1.0).value.sum()
    first = torch.autograd.grad(value, (b, F.slopes), retain_graph=True)
    second = torch.autograd.grad(value, (b, F.slopes))
    for got, expected in zip(second, first, strict=True):
        assert torch.equal(got, expected)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, (b, F.slopes))


def test_a_masked_sample_has_no_share_in_the_gradients() -> None:
    slopes = torch.full((20,), 0.2).requires_grad_()
    factor = torch.tensor([[1.0], [5.0], [1.0]])  # I - F' is singular in the second sample.
    b = torch.randn(3, 20, requires_grad=True)

    def gradients(rows: list[int]) -> Tensor:
        F = rs.Rowwise(lambda w, c: c * slopes * w, factor[rows])
        value = rs.resolve(F, b[rows], 1.0, on_failure="mask").value
        return torch.autograd.grad(value[value.isfinite()].sum(), slopes)[0]

    torch.testing.assert_close(gradients([0, 1, 2]), gradients([0, 2]), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_small_and_large_cotangents(size: float) -> None:
    """Where the system is scaled, the gradients are not."""
    F = Scaled(torch.full((20,), 0.13, dtype=torch.float32))
    b = torch.randn(4, 20, dtype=torch.float32, requires_grad=True)
    rs.resolve(F, b, 1.0).value.backward(torch.full((4, 20), size, dtype=torch.float32))
    assert F.slopes.grad is not None
    expected = b.detach().sum(0) / (1 - 0.13) ** 2
    torch.testing.assert_close(F.slopes.grad / size, expected, rtol=1e-4, atol=1e-5)
    assert F.to_slopes.passed == 1


def test_small_cotangents_of_a_field_in_half_precision() -> None:
    """Products of cotangents that are not scaled would be zero."""
    W = weights().detach().float().requires_grad_()
    b = torch.randn(4, 12, dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        value = rs.resolve(lambda w: w @ W, b, 1.0).value
    g = 1e-8 * torch.randn(4, 12, dtype=torch.float32)
    exact = torch.linalg.solve(torch.eye(12) - W.detach().double(), g.double().mT).mT
    gradients = torch.autograd.grad(value, (b, W), g)
    assert (gradients[0] - exact).norm() < 0.01 * exact.norm()
