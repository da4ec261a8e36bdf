"""Contenders that record their passes once and replay them as CUDA graphs."""

from functools import partial

import resolvent as rs
from resolvent_lab.bench.accuracy import residual
from resolvent_lab.bench.contender import TorchContender
from resolvent_lab.bench.layers import Explicit, remade
from resolvent_lab.bench.task import Convert, Task

_STEPS = (1, 2, 3, 4, 6, 8, 12)
"""Step counts to try; the smallest that meets the tolerance is used, forward and backward."""


def graphed(task: Task) -> list["GraphedContender"]:
    """The contenders for a task; none on a CPU. Their layers take a fixed number of solver steps."""
    if task.row in ("B1", "B2") or task.batch[0].device.type != "cuda":
        return []
    plain, steps = _fixed_steps(task)
    offers: dict[str, Convert] = {"explicit, CUDA graph": Explicit, "resolvent, CUDA graph": plain}
    return [GraphedContender(name, task, convert, steps) for name, convert in offers.items()]


def _fixed_steps(task: Task) -> tuple[Convert, int]:
    for steps in _STEPS:
        stopping = rs.FixedSteps(steps, rtol=task.tolerance, atol=0.0)
        convert = partial(remade, stopping=stopping, on_failure="ignore")
        if residual(task, TorchContender("", task, convert).outcome().states) <= task.tolerance:
            break
    return convert, steps


class GraphedContender(TorchContender):
    """Layers in PyTorch that never wait for the device, so that a pass is one CUDA graph.

    Its peak memory is measured without replay, because a graph keeps its memory.
    """

    def __init__(self, name: str, task: Task, convert: Convert, steps: int) -> None:
        super().__init__(name, task, convert)
        self.fast = rs.blocks.cuda_graph(self.model, task.batch[0], steps)

    def seconds(self, kind: str, repeats: int) -> float:
        plain, self.called = self.called, self.fast
        try:
            return super().seconds(kind, repeats)
        finally:
            self.called = plain
