"""The modes of PyTorch a function may be called in: inference mode, autocast, `torch.func` transforms."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from resolvent.core.problem import Rowwise, full_precision
from resolvent.core.transforms import ClosedOver, outside_inference, transforming

Function = Callable[[Tensor], Tensor]


@contextmanager
def derivatives_allowed(device: torch.device) -> Iterator[None]:
    """Leaves inference mode, where autograd records nothing, and autocast, which would round the algebra.

    Whether autograd records stays as it was.
    """
    if not torch.is_inference_mode_enabled():
        with full_precision(device):
            yield
        return
    with torch.inference_mode(False), torch.no_grad(), full_precision(device):
        yield


def without_inference_tensors(function: Function) -> Function:
    """The function with copies of the inference tensors that it closes over, such as the weights of a module that was
    made in inference mode: autograd refuses to save them.

    They are looked for only when the function has failed because of them. To be called outside of inference mode.
    """
    if isinstance(function, Rowwise):
        return function.repeat(1)  # Once is a copy, too, and a copy made here is an ordinary tensor.
    bound: list[Function] = []

    def call(x: Tensor) -> Tensor:
        if bound:
            return bound[0](x)
        try:
            return function(x)
        except RuntimeError as error:
            if "Inference tensors cannot be saved for backward" not in str(error):
                raise
        closed = ClosedOver(function, x.detach())
        bound.append(closed.bind([outside_inference(tensor) for tensor in closed.tensors]))
        return bound[0](x)

    linear_part = getattr(function, "linear_part", None)
    if linear_part is not None:
        call.linear_part = outside_inference(linear_part)  # type: ignore[attr-defined]
    return call


def refuse_transforms(name: str) -> None:
    """Raises if a `torch.func` transform is running: there a tensor has no value that a Python number could be."""
    if transforming():
        raise ValueError(f"{name} cannot run inside torch.func transforms such as vmap: call it outside.")
