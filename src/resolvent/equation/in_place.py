"""Functions that change their argument in place are refused: a solver still needs the state that it gives them.

Every tensor counts its changes, and shares the count with its views. Comparing two counts costs next to nothing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from resolvent.equation.torch_func import transforming

T = TypeVar("T")


def changes_of(x: Tensor) -> int:
    """How often x, or a view of it, was changed in place. Tensors made in inference mode do not count."""
    if not transforming():
        return 0 if x.is_inference() else x._version
    # What stands for a tensor in a transform does not count. Modes that record which tensors F uses must not see it.
    with torch._C.DisableTorchFunction():
        while is_functorch_wrapped_tensor(x):
            x = get_unwrapped(x)
        return 0 if x.is_inference() else x._version


def change_error(name: str = "F") -> ValueError:
    """The error for a function that has changed its argument."""
    return ValueError(
        f"{name} changes its argument in place; the solver still needs it, and it may share memory with your input: "
        "write x = x + f(x), not x += f(x), and take nn.ReLU(inplace=False) where an activation gets the state itself. "
        "What is computed on the way may be changed in place."
    )


def unchanged(call: Callable[..., T], x: Tensor, *others: Any, name: str = "F") -> T:
    """call(x, *others). Raises if that changes x. On the way of every evaluation these lines are written out, to save
    the call."""
    before = changes_of(x)
    try:
        value = call(x, *others)
    except RuntimeError as error:
        explain(error, lambda x: call(x, *others), x, name)
        raise
    if changes_of(x) != before:
        raise change_error(name)
    return value


def explain(error: RuntimeError, call: Callable[[Tensor], Any], x: Tensor, name: str = "F") -> None:
    """Raises in the place of an error of torch if that says that `call` changes its argument x: torch forbids it for
    some tensors in a graph. Calls the function again, with a copy of x. Returns if there is another cause."""
    if "inplace" not in str(error).replace("-", ""):
        return
    with torch.no_grad():
        copy = x.detach().clone()
        before = changes_of(copy)
        try:
            call(copy)
        except RuntimeError:
            return
    if changes_of(copy) != before:
        raise change_error(name) from error
