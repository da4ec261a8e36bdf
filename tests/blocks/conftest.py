"""Measuring the memory of the CPU allocator."""

from collections.abc import Callable

import pytest
from torch.profiler import ProfilerActivity, profile


def _peak(action: Callable[[], None]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    level = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            highest = max(highest, level)
    return highest


@pytest.fixture
def peak_memory() -> Callable[[Callable[[], None]], int]:
    """The most bytes that were allocated at once while an action ran, beyond those before it."""
    return _peak
