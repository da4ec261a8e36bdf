"""Training steps that are recorded once and replayed as CUDA graphs."""

from collections.abc import Callable

import torch

from resolvent.bench.contender import TorchContender
from resolvent.bench.memory import peak_bytes

_WARM_UP = 3


class GraphedContender(TorchContender):
    """Layers in PyTorch that never wait for the device, so that a whole step is one CUDA graph."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.batch = [part.clone() for part in self.batch]
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def train(self) -> None:
        self._replay("train", super().train)

    def infer(self) -> None:
        self._replay("infer", super().infer)

    def peak(self) -> int:
        """Of a step that is not replayed: a graph holds on to its memory."""
        eager = super().train
        eager()
        self.model.zero_grad(set_to_none=True)
        return peak_bytes(eager, self.device)

    def _replay(self, kind: str, act: Callable[[], None]) -> None:
        if kind not in self.graphs:
            self.graphs[kind] = self._record(act)
        self.graphs[kind].replay()

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
