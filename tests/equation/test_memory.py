"""What a solve holds on to: one evaluation of F, however many iterations it took."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.extending import Solver


class Kept:
    """A tensor that autograd has saved; it lives as long as the graph that needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def saved_bytes(build) -> int:  # type: ignore[no-untyped-def]
    """The memory that autograd keeps for the backward pass of what `build` returns."""
    kept: weakref.WeakSet[Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Kept:
        item = Kept(tensor.detach())  # a saved output would otherwise hold on to the node that holds on to it
        kept.add(item)
        return item

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda item: item.tensor):
        result = build()
    gc.collect()
    assert result.requires_grad
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (k.tensor for k in kept)}.values()
    )


def live_bytes() -> int:
    storages = {
        item.untyped_storage().data_ptr(): item.untyped_storage().nbytes()
        for item in gc.get_objects()
        if type(item) in (Tensor, torch.nn.Parameter)  # isinstance would wake up lazy modules
        # What the compiler has traced through a transform has no storage.
        and not torch._C._functorch.is_functorch_wrapped_tensor(item)
    }
    return sum(storages.values())


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))


def quick_and_slow(quick: Solver, *slow: Solver) -> list[Any]:
    return [quick, *(pytest.param(solver, marks=pytest.mark.slow) for solver in slow)]


SAVING = quick_and_slow(rs.Anderson(), rs.Picard(), rs.Broyden(), rs.NewtonKrylov(), rs.LBFGS())
LIVING = quick_and_slow(rs.Anderson(), rs.Picard(), rs.Broyden(), rs.LBFGS(memory=5))


@pytest.mark.parametrize("solver", SAVING, ids=str)
def test_saved_memory_does_not_grow_with_iterations_and_is_that_of_an_explicit_layer(solver: Solver) -> None:
    module = network()
    b = torch.randn(32, 64, requires_grad=True)

    def implicit(max_steps: int) -> Tensor:
        stopping = rs.Stopping(rtol=1e-14, atol=0.0, max_steps=max_steps, patience=1000)
        return rs.resolve(module, b, 0.5, solver=solver, stopping=stopping, on_failure="ignore").value

    explicit = saved_bytes(lambda: b + 0.5 * module(b))
    few, many = (saved_bytes(lambda n=n: implicit(n)) for n in (5, 100))
    assert few == many
    # The stage w, which is the result as well, and the product with tau are all that is added.
    assert many <= explicit + 2 * b.untyped_storage().nbytes()


def test_unrolling_does_grow() -> None:
    """So that the measure above is known to be able to see it."""
    module, b = network(), torch.randn(32, 64, requires_grad=True)

    def unrolled(max_steps: int) -> Tensor:
        return rs.resolve(
            module,
            b,
            0.5,
            solver=rs.Picard(),
            adjoint=rs.UnrolledAdjoint(),
            stopping=rs.Stopping(rtol=1e-14, atol=0.0, max_steps=max_steps, patience=1000),
            on_failure="ignore",
        ).value

    few, more = (saved_bytes(lambda n=n: unrolled(n)) for n in (5, 20))
    assert more - few > 20 * b.untyped_storage().nbytes()


@pytest.mark.parametrize("solver", LIVING, ids=str)
def test_live_memory_during_a_solve_does_not_grow_with_iterations(solver: Solver) -> None:
    rotation, b = torch.linalg.qr(torch.randn(64, 64)).Q, torch.randn(32, 64)
    calls: list[int] = []
    seen: list[int] = []

    def watched(w: Tensor) -> Tensor:
        calls.append(len(calls))
        if len(calls) % 10 == 0:
            seen.append(live_bytes())
        return 0.99 * w @ rotation

    stopping = rs.Stopping(rtol=0.0, atol=1e-300, max_steps=100, patience=1000)
    with torch.no_grad():
        rs.resolve(watched, b, 1.0, solver=solver, stopping=stopping, on_failure="ignore")
    assert len(seen) >= 10
    assert max(seen[5:]) <= max(seen[:5])


def test_backward_frees_what_forward_held() -> None:
    module = network()

    def step() -> None:
        b = torch.randn(32, 64, requires_grad=True)
        value = rs.resolve(module, b, 0.3, solver=rs.Anderson()).value
        value.square().sum().backward()

    gc.collect()
    step()
    before = live_bytes()
    for _ in range(5):
        step()
    assert live_bytes() <= before


def held_bytes(build) -> int:  # type: ignore[no-untyped-def]
    """All memory that is left allocated by what `build` returns."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        result = build()
    assert result.requires_grad
    return sum(event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")


@pytest.mark.parametrize("solver", [rs.Picard(), rs.Anderson(), rs.NewtonKrylov()], ids=str)
def test_the_stage_is_not_held_where_the_field_does_not_need_it(solver: Solver) -> None:
    """The derivative of relu(w) M needs relu(w) and M, and not w."""
    matrix = torch.nn.Parameter(0.1 * torch.randn(512, 512) / 512**0.5)
    x = torch.randn(256, 512, requires_grad=True)

    def F(w: Tensor) -> Tensor:
        return torch.relu(w) @ matrix

    def implicit() -> Tensor:
        return torch.lerp(x, rs.resolve(F, x, 0.5, solver=solver).value, 2.0)

    state = x.untyped_storage().nbytes()
    assert held_bytes(implicit) < held_bytes(lambda: x + F(x)) + state / 2
