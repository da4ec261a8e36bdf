"""Blocks in the workers of a data loader, under other defaults of torch, and with deterministic algorithms."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader

import resolvent as rs
from workers import Solved


def normalised() -> rs.ThetaBlock:
    field = rs.fields.Bounded(rs.fields.MLP(3, 8, 1, bound=1.0, always=True), -4.0, 0.5)
    return rs.ThetaBlock(field, 0.5, 3, 1.0)


def trained(block: rs.ThetaBlock, x: Tensor) -> list[Tensor]:
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        block(x).square().mean().backward()
        optimizer.step()
    return [tensor.detach().clone() for tensor in block.state_dict().values()]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_solve_like_the_main_process(start: str) -> None:
    """Also after the main process has solved and differentiated, and while it goes on."""
    # torch pickles no parametrized modules, so that those cannot be sent to a spawned worker.
    block = normalised() if start == "fork" else rs.ThetaBlock(rs.fields.MLP(3, 8, 1), 0.5, 3, 1.0)
    x = torch.randn(6, 3)
    trained(block, x)
    block.eval()
    loader = DataLoader(Solved(block, x), batch_size=2, num_workers=2, multiprocessing_context=start)
    found = []
    for batch in loader:
        found.append(batch)
        block(x).sum().backward()
    assert_close(torch.cat(found), block(x).detach(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_default_dtype_does_not_matter(default: torch.dtype, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    models = [normalised().to(dtype), rs.Equilibrium(lambda z, x: torch.tanh(0.5 * z + x))]
    inputs = torch.randn(4, 3, dtype=dtype)
    torch.set_default_dtype(default)
    for model in models:
        x = inputs.clone().requires_grad_()
        y = model(x)
        y.sum().backward()
        assert y.dtype == x.grad.dtype == dtype
    assert rs.resolve(torch.sin, inputs, 0.5).value.dtype == dtype
    torch.set_default_dtype(torch.float64)
    assert torch.equal(models[1](inputs), y.detach())


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("memory", ["store", "checkpoint"])
def test_deterministic_algorithms_give_the_same_twice(memory: str) -> None:
    x = torch.randn(6, 3)
    results = []
    for deterministically in (True, True, False):
        torch.manual_seed(0)
        block = normalised()
        block.memory = rs.ThetaBlock(block.field, memory=memory).memory
        if deterministically:
            with deterministic():
                results.append(trained(block, x))
        else:
            results.append(trained(block, x))
    first, second, other = results
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert_close(first, other)


@pytest.mark.slow
def test_solvers_run_with_deterministic_algorithms() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    solvers = [
        rs.Picard(),
        rs.Anderson(),
        rs.Broyden(),
        rs.Newton(),
        rs.NewtonKrylov(),
        rs.LBFGS(),
        rs.PseudoTransient(),
    ]
    with deterministic():
        for solver in solvers:
            rs.resolve(lambda w: torch.sin(w), x, 0.5, solver=solver).value.sum().backward()
