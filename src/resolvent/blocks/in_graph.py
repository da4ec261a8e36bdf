"""Layers in a graph of `torch.compile`: the compiler sees one operation per pass, which runs in eager mode.

How often a solver iterates depends on the data, and nothing of a pass is traced. Its tensors enter an operation,
`opaque.run`, and so does all else that the pass depends on and that is known to the compiler alone: the structure of
the arguments, whether gradients are needed, and autocast. The functions of this file run while the compiler traces.
"""

from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.closed_over import closed_over
from resolvent.blocks.opaque import Call, run
from resolvent.blocks.packing import pack, unpack
from resolvent.equation.numbered import Numbered

# Before torch 2.12 the compiler takes fullgraph=True for an export.
_EXPORT_IS_KNOWN = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)


class InGraph(Numbered):
    """Base of the modules that solve equations."""

    _checked: bool = False
    _rows_checked: bool = False

    def _may_check_proof(self, x: Tensor) -> bool:
        """Whether a proof is still to be checked. A tracer's tensors are of a class of their own: they have no values,
        and their length must not decide."""
        return not self._rows_checked and type(x) is Tensor

    def _in_graph(self, method: str, *arguments: Any, points: int = 0) -> Any:
        """Calls the method with the arguments, as one operation. Its result is like the first argument, or with
        `points` the times and states of a trajectory of so many points."""
        if _EXPORT_IS_KNOWN and torch.compiler.is_exporting():
            raise ValueError("an exported program runs without the layer: take rs.blocks.export(model, ...).")
        tensors: list[Tensor] = []
        numbers: list[float] = []
        state = pack(arguments[0], tensors, numbers)
        count = len(tensors)
        packed = (state, *[pack(argument, tensors, numbers) for argument in arguments[1:]])
        weights = [weight for _, weight in self.named_parameters(remove_duplicate=False)]
        more = closed_over(self)
        device = tensors[0].device.type
        recording = torch.is_grad_enabled()
        call = Call(
            method,
            packed,
            count,
            points,
            len(weights),
            recording,
            str(torch.get_autocast_dtype(device)).removeprefix("torch.") if torch.is_autocast_enabled(device) else "",
            tuple([recording and tensor.requires_grad for tensor in (*tensors, *weights, *more)]),
        )
        results = run(tensors, [*weights, *more], numbers, repr(tuple(call)), self._number, torch.empty(0))
        if points == 0:
            return unpack(state, iter(results[:count]), iter(()))
        return results[0], unpack(state, iter(results[1 : 1 + count]), iter(()))
