"""Row B5: cost, iterations and memory as a network grows or becomes harder to solve."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import resolvent as rs
from resolvent_lab.bench.contender import TorchContender
from resolvent_lab.bench.layers import Explicit
from resolvent_lab.bench.measure import measure
from resolvent_lab.bench.networks import Network
from resolvent_lab.bench.records import quartiles, ratio
from resolvent_lab.bench.task import Task, blocks

Series = list[dict[str, Any]]
POLICIES = ("store", "checkpoint", "reversible")


@dataclasses.dataclass(frozen=True)
class Setup:
    """A network of dissipative layers with theta = 1/2. One property is varied at a time."""

    depth: int = 5
    batch: int = 20
    dimension: int = 2
    stiffness: float = 3.0
    tolerance: float = 1e-6
    horizon: float = 5.0
    double: bool = False

    def task(self, device: str, **options: Any) -> Task:
        torch.manual_seed(0)
        inner = rs.fields.MLP(self.dimension, 20, 2, bound=1.0)
        field = rs.fields.Bounded(inner, -self.stiffness, 0.0, scale=0.5)
        stopping = rs.Stopping(rtol=self.tolerance, atol=0.0)
        layers = rs.ThetaBlock(field, 0.5, self.depth, self.horizon, stopping=stopping, **options)
        dtype = torch.float64 if self.double else torch.float32
        batch = tuple(torch.randn(self.batch, self.dimension, device=device, dtype=dtype) for _ in range(2))
        return Task("B5", "growth", 0.5, self.tolerance, Network(layers).to(device, dtype), batch, _loss)


# In single precision the rounding error of a stiff field, or of a group of layers whose states decay, exceeds the
# tolerance.
DOUBLE = Setup(double=True)
AXES: dict[str, tuple[Setup, Sequence[float]]] = {
    "depth": (DOUBLE, (1, 3, 10, 30, 100, 300, 1000)),
    "stiffness": (DOUBLE, (1, 10, 100, 1e3, 1e4, 1e5, 1e6)),
    "tolerance": (DOUBLE, (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)),
}

MEMORY_DEPTHS = (1, 3, 10, 30, 100, 300)


def growth(
    device: str,
    rounds: int,
    seconds: float,
    limit: float = float("inf"),
    save: Callable[[dict[str, Series]], None] = lambda series: None,
) -> dict[str, Series]:
    """All series by name. Values above `limit` are left out. `save` is called after each point."""
    series: dict[str, Series] = {axis: [] for axis in (*AXES, "memory")}
    for axis, (setup, values) in AXES.items():
        for value in values:
            if value <= limit:
                varied = dataclasses.replace(setup, **{axis: type(getattr(setup, axis))(value)})
                series[axis].append(_point(value, varied, device, rounds, seconds))
                save(series)
    for depth in (depth for depth in MEMORY_DEPTHS if depth <= limit):
        # With a short horizon the reversible policy can recover states from the last one.
        series["memory"].append(_memory(Setup(depth=depth, batch=64, dimension=16, horizon=1.0), device))
        save(series)
    return series


def _point(value: float, setup: Setup, device: str, rounds: int, seconds: float) -> dict[str, Any]:
    task = setup.task(device)
    contenders = [
        TorchContender(name, task, convert) for name, convert in (("explicit", Explicit), ("resolvent", _itself))
    ]
    try:
        with torch.no_grad():
            solutions = next(iter(blocks(task.model).values())).trajectory(task.batch[0]).solutions
        times = measure(contenders, rounds, seconds)
    except rs.errors.ResolventError as failure:
        return {"value": value, "failure": str(failure).splitlines()[0]}
    steps = torch.stack([solution.steps.double().mean() for solution in solutions])
    return {
        "value": value,
        "iterations": steps.mean().item(),
        "seconds": quartiles(times["resolvent"]["train"]),
        "ratio": ratio(times["resolvent"], times["explicit"], "train"),
    }


def _memory(setup: Setup, device: str) -> dict[str, Any]:
    """Peak memory of a training step in bytes, for the explicit network and each memory policy."""
    explicit: dict[str, Callable[[], TorchContender]] = {
        "explicit": lambda: TorchContender("explicit", setup.task(device), Explicit)
    }
    policies = {policy: _with_policy(setup, device, policy) for policy in POLICIES}
    return {"value": setup.depth, "bytes": {name: _peak(make) for name, make in (explicit | policies).items()}}


def _with_policy(setup: Setup, device: str, policy: str) -> Callable[[], TorchContender]:
    return lambda: TorchContender(policy, setup.task(device, memory=policy), _itself)


def _peak(make: Callable[[], TorchContender]) -> int | None:
    try:
        return make().peak()
    except rs.errors.ResolventError:
        return None


def _itself(block: rs.ThetaBlock) -> rs.ThetaBlock:
    return block


def _loss(model: Any, batch: Any) -> Tensor:
    start, target = batch
    return F.mse_loss(model.layers(start), target)
