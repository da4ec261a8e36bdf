"""Training steps that are recorded once and replayed as CUDA graphs."""

from collections.abc import Callable
from functools import partial

import torch

import resolvent as rs
from resolvent_lab.bench.accuracy import residual
from resolvent_lab.bench.contender import TorchContender
from resolvent_lab.bench.layers import Explicit, remade
from resolvent_lab.bench.task import Convert, Task

_WARM_UP = 3
_STEPS = (1, 2, 3, 4, 6, 8, 12)
"""Of a solver that never looks, the fewest of which that reach the tolerance are made, forward and backward."""


def graphed(task: Task) -> list["GraphedContender"]:
    """What can be replayed as a CUDA graph: layers that make a fixed number of steps and never wait for the device."""
    if task.row in ("B1", "B2") or task.batch[0].device.type != "cuda":
        return []
    offers = {"explicit, CUDA graph": Explicit, "resolvent, CUDA graph": _blind_enough(task)}
    return [GraphedContender(name, task, convert) for name, convert in offers.items()]


def _blind_enough(task: Task) -> Convert:
    for steps in _STEPS:
        stopping = rs.FixedSteps(steps, rtol=task.tolerance, atol=0.0)
        convert = partial(remade, stopping=stopping, on_failure="ignore")
        if residual(task, TorchContender("", task, convert).outcome().states) <= task.tolerance:
            break
    return convert


class GraphedContender(TorchContender):
    """Layers in PyTorch that never wait for the device, so that a whole step is one CUDA graph.

    Its peak memory is that of a step that is not replayed: a graph holds on to its memory.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.batch = [part.clone() for part in self.batch]
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def prepared(self, kind: str, act: Callable[[], None]) -> Callable[[], None]:
        if kind not in self.graphs:
            self.graphs[kind] = self._record(act)
        return self.graphs[kind].replay

    def _record(self, act: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # Lazy initialisations must not be recorded, and nothing that is recorded may be on the default stream.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                act()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            act()
        return graph

    @torch.no_grad()
    def _renew(self) -> None:
        """Other data in the place of the old, where the graph reads them."""
        for part, first in zip(self.batch, self.task.batch, strict=True):
            if part.is_floating_point():
                part.copy_(first + 1e-3 * torch.randn_like(first))
