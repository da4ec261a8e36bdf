"""Measurements: times of contenders that take turns, peak memory, and the accuracy of states and gradients."""

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab.bench.equilibria import EquilibriumLayer
from resolvent_lab.bench.layers import stage_fraction
from resolvent_lab.bench.task import Task, blocks

if TYPE_CHECKING:
    from resolvent_lab.bench.contender import Contender

ACTIONS = ("train", "infer")
"""What is measured: a training step, and a forward pass without gradients."""


def measure(contenders: "Sequence[Contender]", rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """The times of all turns by name and action.

    Contenders take turns, so that other load on the machine affects all of them alike: the ratio of two of them is to
    be taken round by round.

    Arguments:
        contenders: at least one.
        rounds: number of turns of each contender.
        seconds: approximate length of a turn; a turn has 1 to 100 steps.
    """
    times: dict[str, dict[str, list[float]]] = {each.name: {action: [] for action in ACTIONS} for each in contenders}
    for action in ACTIONS:
        repeats = {each.name: _repeats(each, action, seconds) for each in contenders}
        for n in range(rounds):
            # Each round starts with another contender.
            for each in [*contenders[n % len(contenders) :], *contenders[: n % len(contenders)]]:
                times[each.name][action].append(each.seconds(action, repeats[each.name]))
    return times


def _repeats(contender: "Contender", action: str, seconds: float) -> int:
    contender.seconds(action, 1)  # compiles and warms up
    return max(1, min(100, math.ceil(seconds / contender.seconds(action, 1))))


def peak_bytes(action: Callable[[], object], device: torch.device) -> int:
    """Peak memory of tensors during an action in bytes, beyond what was allocated before.

    On a GPU it comes from the allocator, on a CPU from the profiler's record of all allocations.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        action()
    held = peak = 0
    for size in _allocations(profile):
        held += size
        peak = max(peak, held)
    return peak


def _allocations(profile: torch.profiler.profile) -> list[int]:
    """Bytes in the order of time; releases are negative."""
    events: list[Any] = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    memory = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns())]


@torch.no_grad()
def residual(task: Task, states: Sequence[Tensor]) -> float:
    """The largest |z - x - theta h F(z)| / max(|x|, |z|) over layers and samples, z = (1 - theta) x + theta y.

    For equilibrium layers, the largest |z - f(z, x)| / |z|.
    """
    model = copy.deepcopy(task.model).double().eval()
    pairs = zip(blocks(model).values(), states, strict=True)
    return max(_of_block(block, states.double()) for block, states in pairs)


def _of_block(block: rs.ThetaBlock | EquilibriumLayer, states: Tensor) -> float:
    if isinstance(block, EquilibriumLayer):
        x, z = states
        return float((_norm(z - block.f(z, x)) / _norm(z)).max())
    theta, h = float(block.theta), float(block.step_size)
    worst = 0.0
    for n, (x, y) in enumerate(pairwise(states)):
        z = (1 - theta) * x + theta * y
        defect = z - x - theta * h * block.field((n + stage_fraction(theta)) * h, z)
        scale = torch.maximum(_norm(x), _norm(z))
        worst = max(worst, float((_norm(defect) / scale).max()))
    return worst


def gradient_error(gradients: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """|g - g_exact| / |g_exact|, for the gradients of all parameters as one vector."""
    found, right = (torch.cat([part.double().flatten() for part in parts]) for parts in (gradients, exact))
    return float((found - right).norm() / right.norm())


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)
