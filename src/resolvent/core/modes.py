"""The modes of PyTorch a function may be called in: inference mode, autocast, `torch.func` transforms."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from resolvent.core.problem import Rowwise, full_precision
from resolvent.core.transforms import ClosedOver, outside_inference, transforming
from resolvent.errors import ResolventError

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
    made in inference mode: autograd refuses to save them. To be called outside of inference mode.
    """
    if isinstance(function, Rowwise):
        copy = function.repeat(1)  # Once is a copy, too, and what is copied here are ordinary tensors.
        for name, value in vars(copy).items():
            setattr(copy, name, outside_inference(value))
        copy.function = _retrying(copy.function)
        return copy
    call = _retrying(function)
    linear_part = getattr(function, "linear_part", None)
    if linear_part is not None:
        call.linear_part = outside_inference(linear_part)  # type: ignore[attr-defined]
    return call


def _retrying(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function of x and conditions; inference tensors are looked for only when it has failed because of them."""
    bound: list[Function] = []
    conditions: tuple[Tensor, ...] = ()

    def call(x: Tensor, *given: Tensor) -> Tensor:
        nonlocal conditions
        conditions = given
        if bound:
            return bound[0](x)
        try:
            return function(x, *conditions)
        except RuntimeError as error:
            # torch says it in several ways; hence the tensors are asked, not the message.
            if isinstance(error, ResolventError):
                raise
            closed = ClosedOver(lambda w: function(w, *conditions), x.detach())
            if not any(tensor.is_inference() for tensor in closed.tensors):
                raise
        bound.append(closed.bind([outside_inference(tensor) for tensor in closed.tensors]))
        return bound[0](x)

    return call


def refuse_transforms(name: str) -> None:
    """Raises if a `torch.func` transform is running, for functions that return Python numbers or records of them."""
    if transforming():
        raise ValueError(f"{name} {_OUTSIDE}")


def as_number(value: Tensor, name: str) -> float:
    """The value as a Python number; raises inside vmap if it is another one for each copy."""
    try:
        return float(value)
    except RuntimeError as error:
        if transforming():
            raise ValueError(f"{name} {_OUTSIDE}") from error
        raise


_OUTSIDE = "cannot run inside torch.func transforms such as vmap: call it outside."
