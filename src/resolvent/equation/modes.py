"""PyTorch modes a function may be called in: inference mode, autocast, `torch.func` transforms."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from resolvent.equation.function import Function
from resolvent.equation.problem import full_precision
from resolvent.equation.torch_func import ClosedOver, outside_inference, transforming
from resolvent.errors import ResolventError

Call = Callable[[Tensor], Tensor]


@contextmanager
def derivatives_allowed(device: torch.device) -> Iterator[None]:
    """Leaves inference mode, where autograd records nothing, and autocast, which would round the algebra.

    Does not change whether autograd records.
    """
    with outside_inference_mode(), full_precision(device):
        yield


@contextmanager
def outside_inference_mode(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Leaves inference mode and yields copies of tensors that were made in it. In inference mode `torch.func` loses
    derivatives in some releases of torch. Does not change whether autograd records."""
    if not torch.is_inference_mode_enabled():
        yield tensors
        return
    with torch.inference_mode(False), torch.no_grad():
        yield tuple(outside_inference(tensor) for tensor in tensors)


C = TypeVar("C", bound=Call)


def without_inference_tensors(function: C) -> C:
    """The function with copies of the inference tensors it closes over, such as the weights of a module made in
    inference mode: autograd refuses to save them. Call it outside inference mode.
    """
    if isinstance(function, Function):
        copy = function.outside_inference()
        return cast(C, replace(copy, call=_retrying(copy.call)))
    return cast(C, _retrying(function))


def _retrying(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function of x and conditions. Searches for inference tensors only after a call has failed."""
    bound: list[Call] = []

    def call(x: Tensor, *conditions: Tensor) -> Tensor:
        if bound:
            return bound[0](x)
        try:
            return function(x, *conditions)
        except RuntimeError as error:
            # torch has several messages for this, so the tensors are checked, not the message.
            if isinstance(error, ResolventError):
                raise
            closed = ClosedOver(lambda w: function(w, *conditions), x.detach())
            if not any(tensor.is_inference() for tensor in closed.tensors):
                raise
        found = closed.bind([outside_inference(tensor) for tensor in closed.tensors])
        if not conditions:  # The next call may have other conditions.
            bound.append(found)
        return found(x)

    return call


def refuse_transforms(name: str) -> None:
    """Raises if a `torch.func` transform is running, for functions that return Python numbers or records of them."""
    if transforming():
        raise ValueError(f"{name} {_OUTSIDE}")


def as_number(value: Tensor, name: str) -> float:
    """The value as a Python number. Raises inside vmap if the value differs between copies."""
    try:
        return float(value)
    except RuntimeError as error:
        if transforming():
            raise ValueError(f"{name} {_OUTSIDE}") from error
        raise


_OUTSIDE = "cannot run inside torch.func transforms such as vmap: call it outside."
