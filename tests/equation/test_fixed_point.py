"""A fixed number of accelerated steps, by the default: what recorded passes make."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import resolvent as rs
from equation.test_fixed_steps import Waits
from resolvent.equation import directions

UNKNOWNS = 40


class Field(torch.nn.Module):
    """F(w) = c w + tanh(W w), with singular values of W equal to `steepness`."""

    def __init__(self, steepness: float = 1.0, c: float | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(steepness * torch.linalg.qr(torch.randn(UNKNOWNS, UNKNOWNS)).Q)
        self.linear_part = c

    def forward(self, w: Tensor) -> Tensor:
        image = torch.tanh(w.flatten(1) @ self.weight).reshape(w.shape)
        return image if self.linear_part is None else self.linear_part * w + image


def solve(field: torch.nn.Module, b: Tensor, steps: int, tau: float | Tensor = 0.7, **options: object) -> rs.Solution:
    """Solutions of the backward pass go to `field.backward`."""
    field.backward = []
    adjoint = rs.ImplicitAdjoint(callback=field.backward.append)
    stopping = rs.FixedSteps(steps, **options)
    return rs.resolve(field, b, tau, stopping=stopping, adjoint=adjoint, on_failure="ignore")


@pytest.mark.parametrize("c", [None, -3.0])
@pytest.mark.parametrize("tau", [0.7, torch.linspace(0.3, 0.8, 5)])
@pytest.mark.parametrize("shape", [(5, UNKNOWNS), (5, 4, 2, 5)])
def test_with_steps_enough_it_is_the_solution(c: float | None, tau: float | Tensor, shape: tuple[int, ...]) -> None:
    field, b = Field(c=c), torch.randn(shape, requires_grad=True)
    leaves = [b, field.weight]
    exact = rs.resolve(field, b, tau, stopping=rs.Stopping(rtol=1e-12, atol=1e-13))
    values = [solve(field, b, 60, tau).value, exact.value]
    ours, reference = ([value, *torch.autograd.grad(value.square().sum(), leaves)] for value in values)
    for one, other in zip(ours, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


class Calls(TorchDispatchMode):
    """Counts the operations of a pass through `Field`, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def test_it_evaluates_once_a_step_and_once_more() -> None:
    """The last evaluation is at the result. It serves the backward pass, whose last product brings the gradients."""
    field, b = Field(), torch.randn(5, UNKNOWNS, requires_grad=True)
    with Calls() as calls:
        solution = solve(field, b, 4)
        torch.autograd.grad(solution.value.sum(), [b, field.weight])
    assert (calls.found["aten::tanh"], calls.found["aten::tanh_backward"]) == (5, 5)
    assert solution.steps.tolist() == [4] * 5
    assert (solution.evaluations, field.backward[0].vjps) == (5, 5)


@pytest.mark.parametrize("steps", range(1, directions.MEMORY + 2))
def test_on_linear_equations_it_is_as_good_as_gmres(steps: int) -> None:
    """The residual after one more step of the fixed point is B r, with r the residual of GMRES and B = tau F'."""
    matrix = 0.8 * torch.linalg.qr(torch.randn(UNKNOWNS, UNKNOWNS)).Q
    b = torch.randn(3, UNKNOWNS)
    solution = rs.resolve(lambda w: w @ matrix.mT, b, 1.0, stopping=rs.FixedSteps(steps), on_failure="ignore")
    A, first = torch.eye(UNKNOWNS) - matrix, b @ matrix.mT
    for sample in range(3):
        r, krylov = first[sample], []
        for _ in range(steps - 1):
            krylov.append(A @ (krylov[-1] if krylov else r))
        if krylov:
            basis = torch.linalg.qr(torch.stack(krylov, 1)).Q
            r = r - basis @ (basis.mT @ r)
        rms = (matrix @ r).square().mean().sqrt()
        torch.testing.assert_close(solution.residual[sample], rms, rtol=1e-6, atol=1e-12)


def test_slow_equations_are_solved_beyond_the_memory() -> None:
    field = Field(steepness=1.6)
    solution = solve(field, torch.randn(4, UNKNOWNS), 60)
    assert 3 * directions.MEMORY < 60
    assert solution.converged.all()


def test_statuses_and_other_samples() -> None:
    field, b = Field(), torch.randn(4, UNKNOWNS)
    b[1] = torch.nan
    few, many = solve(field, b, 2), solve(field, b, 40)
    assert [rs.Status(int(code)).name for code in few.status] == ["MAX_STEPS", "NON_FINITE", "MAX_STEPS", "MAX_STEPS"]
    assert [rs.Status(int(code)).name for code in many.status] == ["CONVERGED", "NON_FINITE", "CONVERGED", "CONVERGED"]
    alone = solve(field, b[2:], 40)
    torch.testing.assert_close(many.value[2:], alone.value, rtol=1e-12, atol=1e-12)


def test_solved_equations_stay_solved() -> None:
    """At rounding, changes have no direction left that could be used."""
    field, b = Field(steepness=0.1), torch.randn(4, UNKNOWNS)
    solution = solve(field, b, 60, rtol=1e-13)
    assert solution.converged.all()
    still = solve(Field(steepness=0.0), b, 10)
    assert torch.equal(still.value, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_waits(dtype: torch.dtype) -> None:
    field, b = Field().to(dtype), torch.randn(4, UNKNOWNS, dtype=dtype, requires_grad=True)
    with Waits() as waits:
        solve(field, b, 5).value.sum().backward()
    assert not waits.found


def check_small_gradients(field: torch.nn.Module, b: Tensor, steps: int) -> None:
    """The gradient of a loss of size 1e-30 is that of the loss, times 1e-30."""
    b.requires_grad_()
    gradients = []
    for scale in (1.0, 1e-30):
        (gradient,) = torch.autograd.grad(solve(field, b, steps, rtol=1e-5).value.sum() * scale, b)
        assert field.backward[0].converged.all()
        gradients.append(gradient.double() / scale)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_small_gradients_are_solved_for() -> None:
    check_small_gradients(Field().float(), torch.randn(4, UNKNOWNS, dtype=torch.float32), steps=30)


def test_under_vmap() -> None:
    field, b = Field(), torch.randn(2, 3, UNKNOWNS)
    both = torch.func.vmap(lambda x: solve(field, x, 30).value)(b)
    torch.testing.assert_close(both, torch.stack([solve(field, x, 30).value for x in b]), rtol=1e-8, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnCuda:
    """By kernels."""

    @pytest.mark.parametrize("c", [None, -3.0])
    @pytest.mark.parametrize("steps", [1, 2, 4, 30])
    @pytest.mark.parametrize("size", [UNKNOWNS, 33, 5000])
    def test_it_agrees_with_the_cpu(self, size: int, steps: int, c: float | None) -> None:
        field, b = Elementwise(c), torch.randn(6, size, dtype=torch.float32)
        b[1] = torch.nan
        results = []
        for device in ("cpu", "cuda"):
            leaf = b.to(device).requires_grad_()
            solution = solve(field, leaf, steps, rtol=1e-3)
            (gradient,) = torch.autograd.grad(solution.value.nan_to_num().square().sum(), leaf)
            (backward,) = field.backward
            parts = (solution.value, solution.residual, backward.residual, gradient)
            statuses = (solution.status, backward.status)
            results.append([*(part.detach().cpu() for part in parts), *(status.cpu() for status in statuses)])
        (*cpu, status, linear), (*gpu, status_here, linear_here) = results
        for one, other in zip(cpu, gpu, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=3e-5, equal_nan=True)
        assert status.tolist() == status_here.tolist()
        assert linear.tolist() == linear_here.tolist()

    def test_a_sample_does_not_depend_on_the_others(self) -> None:
        field, b = Elementwise(None), torch.randn(64, 5000, dtype=torch.float32, device="cuda")
        whole = solve(field, b, 7)
        for part in (slice(0, 1), slice(10, 13)):
            alone = solve(field, b[part], 7)
            assert torch.equal(alone.value, whole.value[part])
            assert torch.equal(alone.residual, whole.residual[part])

    def test_small_gradients_are_solved_for(self) -> None:
        check_small_gradients(Elementwise(-1.0), torch.randn(4, 100, dtype=torch.float32, device="cuda"), steps=12)

    def test_an_empty_batch(self) -> None:
        assert solve(Elementwise(None), torch.randn(0, UNKNOWNS, device="cuda"), 3).value.shape == (0, UNKNOWNS)


class Elementwise(torch.nn.Module):
    """F(w)_i = c w_i + sin(w_{i+1} + i mod 7): rounds the same way for any batch."""

    def __init__(self, c: float | None) -> None:
        super().__init__()
        self.linear_part = c

    def forward(self, w: Tensor) -> Tensor:
        phases = torch.arange(w.shape[1], dtype=w.dtype, device=w.device) % 7
        image = torch.sin(w.roll(1, 1) + phases)
        return image if self.linear_part is None else self.linear_part * w + image
