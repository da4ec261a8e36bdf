"""What is copied out of the memory of a CUDA graph, which the next replay overwrites."""

from typing import Any

import torch
from torch import Tensor

from resolvent.errors import DerivativeOrderError, ResolventError


class CopiedGradients(torch.autograd.Function):
    """Returns the tensors unchanged and copies their gradients: a graph writes the next ones to the same memory."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # Unused weights have no gradient.
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # Copies many small tensors in few kernels.
        copies = iter(torch._foreach_mul([g for g in gradients if g is not None], 1.0))
        return tuple(None if g is None else next(copies) for g in gradients)


class CopiedOutputs(torch.autograd.Function):
    """Copies the outputs, which the next call overwrites. Raises in a backward pass whose data another call or another
    backward pass has overwritten."""

    @staticmethod
    def forward(ctx: Any, recording: Any, call: int, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.recording, ctx.call = recording, call
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise DerivativeOrderError(
                "a CUDA graph has first derivatives only, but a graph of them was requested (create_graph=True): call "
                "the model itself."
            )
        if ctx.recording.open != ctx.call:
            raise ResolventError(
                "a CUDA graph keeps what one backward pass of its last call needs: differentiate every call at most "
                "once, and before the next call, or call the model itself."
            )
        ctx.recording.open = None
        return None, None, *cotangents


class HostCopy:
    """A copy of a small tensor on the host that is read without waiting for the device."""

    def __init__(self) -> None:
        self._copy: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def send(self, tensor: Tensor) -> None:
        """Starts a copy, after everything that the device was told before."""
        if not tensor.is_cuda:
            self._copy = tensor.clone()
            return
        if self._copy is None:
            self._copy, self._arrived = torch.empty_like(tensor, device="cpu", pin_memory=True), torch.cuda.Event()
        assert self._arrived is not None
        self._copy.copy_(tensor, non_blocking=True)
        self._arrived.record()

    def read(self) -> list[list[int]] | None:
        """The entries of the last copy; None if it has not arrived."""
        if self._copy is None or (self._arrived is not None and not self._arrived.query()):
            return None
        entries: list[list[int]] = self._copy.tolist()
        return entries
