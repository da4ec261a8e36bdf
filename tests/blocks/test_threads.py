"""Threads: a pass sees the weights of its own model, whatever passes run at the same time."""

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Barrier, Event
from typing import TypeVar

import pytest
import torch
from torch import Tensor

import resolvent as rs

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds after which a thread is taken for stuck."""


class Waits(rs.fields.Field):
    """-y, once it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.leave = Event(), Event()

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        self.entered.set()
        assert self.leave.wait(PATIENCE)
        return -y


def one_thread_each() -> None:
    """Every thread has a number of threads of its own for its matrix products, and with it another order of sums."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def often_interrupted() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@contextmanager
def pass_under_way() -> Iterator[None]:
    """Another thread is in the middle of a pass of another block."""
    field = Waits()
    with ThreadPoolExecutor(1, initializer=one_thread_each) as pool:
        other = pool.submit(rs.ThetaBlock(field, 0.0, 1), torch.ones(1, 2))
        try:
            assert field.entered.wait(PATIENCE)
            yield
        finally:
            field.leave.set()
        torch.testing.assert_close(other.result(PATIENCE), torch.zeros(1, 2))


def at_once(*actions: Callable[[Barrier], T]) -> list[T]:
    """What the actions return, each in a thread of its own; the barrier is there to make them meet."""
    barrier = Barrier(len(actions), timeout=PATIENCE)

    def act(action: Callable[[Barrier], T]) -> T:
        try:
            return action(barrier)
        except BaseException:
            barrier.abort()  # Nobody waits for a thread that has failed.
            raise

    with ThreadPoolExecutor(len(actions), initializer=one_thread_each) as pool:
        futures = [pool.submit(act, action) for action in actions]
        return [future.result(PATIENCE) for future in futures]


def normalised(seed: int, **options: str) -> rs.ThetaBlock:
    torch.manual_seed(seed)
    field = rs.fields.Bounded(rs.fields.MLP(3, 8, 1, bound=1.0, always=True), -4.0, 0.5)
    return rs.ThetaBlock(field, 0.5, 4, 1.0, **options)


def outcome(block: rs.ThetaBlock, x: Tensor) -> list[Tensor | None]:
    """A state, and the gradients of all parameters."""
    block.zero_grad()
    y = block(x)
    y.square().sum().backward()
    return [y.detach(), *(parameter.grad for parameter in block.parameters())]


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_new_weights_count_while_another_pass_is_under_way(memory: str) -> None:
    first, second = (normalised(seed).state_dict() for seed in (1, 2))
    x = torch.randn(5, 3)

    def outcomes() -> list[Tensor | None]:
        block = normalised(0, memory=memory)
        results = []
        for state in (first, second):
            block.load_state_dict(state)
            results += outcome(block, x)
        return results

    alone = outcomes()
    with pass_under_way():
        together = outcomes()
    for ours, reference in zip(together, alone, strict=True):
        assert ours is not None
        assert torch.equal(ours, reference)


def test_penalties_and_tangents_while_another_pass_is_under_way() -> None:
    x, v = torch.randn(5, 3), torch.randn(5, 3)

    def gradients() -> list[Tensor | None]:
        block = normalised(0)
        results = []
        for seed in (1, 2):
            block.load_state_dict(normalised(seed).state_dict())
            penalty = rs.regularizers.TrajectoryPenalty(1.0, 1.0, exact=True)(block.field, block.trajectory(x)).total
            block.zero_grad()
            (penalty + rs.jvp(block, x, v).tangents.square().sum()).backward()
            results += [parameter.grad for parameter in block.parameters()]
        return results

    alone = gradients()
    with pass_under_way():
        together = gradients()
    for ours, reference in zip(together, alone, strict=True):
        assert ours is not None
        assert torch.equal(ours, reference)


def test_inference_of_one_model_from_four_threads() -> None:
    block = normalised(0).eval()
    batches = torch.randn(4, 6, 5, 3).unbind()

    @torch.no_grad()
    def infer(own: tuple[Tensor, ...], barrier: Barrier) -> list[Tensor]:
        barrier.wait()
        return [block(x) for x in own]

    for seed in range(5):
        # All threads find norms that are still to be measured.
        block.load_state_dict(normalised(seed).state_dict())
        alone = copy.deepcopy(block)
        results = at_once(*(partial(infer, batch.unbind()) for batch in batches))
        with torch.no_grad():
            for own, batch in zip(results, batches, strict=True):
                assert all(torch.equal(y, alone(x)) for y, x in zip(own, batch, strict=True))


@pytest.mark.parametrize("memory", ["store", "checkpoint"])
def test_training_of_two_models_in_two_threads(memory: str) -> None:
    # Nothing but the start is common, so that either thread begins a pass while the other is in one.
    data = torch.randn(2, 20, 5, 3)

    def train(seed: int, barrier: Barrier) -> list[Tensor]:
        block, batches = models[seed], data[seed]
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        barrier.wait()
        for x in batches:
            outcome(block, x)
            optimizer.step()
        return [tensor.detach() for tensor in block.state_dict().values()]

    models = [normalised(seed, memory=memory) for seed in (0, 1)]
    alone = [train(seed, Barrier(1)) for seed in (0, 1)]
    models = [normalised(seed, memory=memory) for seed in (0, 1)]
    together = at_once(*(partial(train, seed) for seed in (0, 1)))
    for ours, reference in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))
