"""Solves of a fixed number of steps that never look at the device."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import resolvent as rs
from resolvent.extending import Solver

# What reads a number from the device, what has a size that depends on one, and what copies one to it.
WAITS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::lift_fresh")
SOLVERS = [rs.Picard(), rs.Anderson(), rs.Newton(), rs.Broyden()]


class Waits(TorchDispatchMode):
    """Counts the operations that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in WAITS:
            self.found[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def blind(steps: int, **options: Any) -> rs.FixedSteps:
    return rs.FixedSteps(steps, **options)


def problem() -> tuple[Tensor, Tensor]:
    return (0.5 * torch.linalg.qr(torch.randn(6, 6)).Q).requires_grad_(), torch.randn(4, 6, requires_grad=True)


def field(w: Tensor, W: Tensor) -> Tensor:
    return torch.sin(w @ W)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_with_steps_enough_it_is_the_same_solution(solver: Solver) -> None:
    W, b = problem()
    results = []
    for stopping, on_failure in ((rs.Stopping(), "raise"), (blind(60), "ignore")):
        value = rs.resolve(lambda w: field(w, W), b, 0.7, solver=solver, stopping=stopping, on_failure=on_failure).value
        results.append([value, *torch.autograd.grad(value.square().sum(), (W, b))])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_nothing_waits(solver: Solver) -> None:
    W, b = problem()
    with Waits() as blindly:
        solution = rs.resolve(
            rs.Rowwise(lambda w: field(w, W)), b, 0.7, solver=solver, stopping=blind(5), on_failure="ignore"
        )
        solution.value.sum().backward()
    assert not blindly.found
    with Waits() as looking:
        rs.resolve(rs.Rowwise(lambda w: field(w, W)), b, 0.7, solver=solver)
    assert looking.found


def test_nothing_waits_in_a_network() -> None:
    network = rs.models.implicit_resnet18(0.5, 4, input_shape=(1, 8, 8), stopping=blind(3), on_failure="ignore")
    images = torch.rand(3, 1, 8, 8)
    network(images)  # checks the fields, once
    with Waits() as waits:
        network(images).square().sum().backward()
        logits, _ = network.forward_with_trajectories(images)
        logits.sum().backward()
    assert not waits.found


def test_nothing_waits_while_a_network_with_norms_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    network = rs.models.implicit_resnet18(
        0.5, 4, input_shape=(1, 8, 8), normalization="bounded", stopping=blind(3), on_failure="ignore"
    )
    images = torch.rand(3, 1, 8, 8)
    network(images)  # measures the norms in full
    monkeypatch.setattr("resolvent.spectral.parametrization._capturing", lambda weight: True)
    with Waits() as waits:
        network(images).square().sum().backward()
    assert not waits.found


def test_what_was_recorded_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes in between, such as those of a validation, must not move what a CUDA graph reads and writes."""
    layer = rs.spectral.spectral_norm(torch.nn.Conv2d(2, 2, 3, padding=1), (2, 8, 8))
    norm = layer.parametrizations.weight[0]
    with monkeypatch.context() as patch:
        patch.setattr("resolvent.spectral.parametrization._capturing", lambda weight: True)
        assert layer.weight.isfinite().all()
    place, before = norm.vector.data_ptr(), norm.vector.clone()
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(torch.rand(2, 2, 3, 3))
    layer.eval()
    exact, _ = rs.spectral.operator_norm(
        lambda v: rs.spectral.layer_operator(layer, (2, 8, 8))(layer.weight, v), (1, 2, 8, 8)
    )
    assert exact <= 1 + 1e-6
    assert norm.vector.data_ptr() == place
    assert not torch.equal(norm.vector, before)


def test_statuses_tell_who_failed() -> None:
    """The solution of w = b - w at tau = 1 is b / 2, and the plain iteration goes back and forth."""
    b = torch.tensor([[0.0], [1.0]])
    solution = rs.resolve(rs.Rowwise(lambda w: -w), b, 1.0, solver=rs.Picard(), stopping=blind(4), on_failure="ignore")
    assert [rs.Status(int(code)).name for code in solution.status] == ["CONVERGED", "MAX_STEPS"]
    assert not solution.all_converged
    assert solution.steps.tolist() == [0, 4]


def test_what_is_not_finite_is_told() -> None:
    b = torch.tensor([[torch.nan], [1.0]])
    solution = rs.resolve(rs.Rowwise(torch.sin), b, 0.5, solver=rs.Anderson(), stopping=blind(12), on_failure="ignore")
    assert [rs.Status(int(code)).name for code in solution.status] == ["NON_FINITE", "CONVERGED"]


@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_it_cannot_raise_or_warn(policy: str) -> None:
    with pytest.raises(ValueError, match=f"cannot {policy}"):
        rs.resolve(torch.sin, torch.ones(2, 3), 0.5, stopping=blind(3), on_failure=policy)
