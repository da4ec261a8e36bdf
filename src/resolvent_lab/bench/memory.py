"""The most memory that an action holds at a time."""

from collections.abc import Callable
from typing import Any

import torch


def peak_bytes(action: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated for tensors at a time during an action, beyond those allocated before.

    On a GPU its allocator tells; on a CPU the profiler's record of all allocations and releases does.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        action()
    held = peak = 0
    for size in _allocations(profile):
        held += size
        peak = max(peak, held)
    return peak


def _allocations(profile: torch.profiler.profile) -> list[int]:
    """Bytes, in order of time; those released are negative."""
    events: list[Any] = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    memory = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns())]
