"""What lets a solve, a loop that decides by the data, live inside the transforms of `torch.func`.

Two things stand in the way there. A decision such as "is any sample still running?" has one answer for each copy of
a vmapped function, so `whole` gathers all copies into an ordinary tensor. And a custom `autograd.Function` sees the
tensors of another level of nesting than the ones that F closed over, so `ClosedOver` finds those tensors and passes
them through the Function as arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


def transforming() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp, ...) is running."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Whether a forward-mode level of `torch.autograd.forward_ad` is open."""
    return forward_ad._current_level >= 0


def outside_inference(x: Any) -> Any:
    """A copy of a tensor that was made in inference mode, which autograd refuses to save; anything else as it is."""
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return whole(x.movedim(in_dims[0], 0)), None


def whole(x: Tensor) -> Tensor:
    """`x` over all copies of a vmapped function, as a tensor that no longer is one per copy."""
    if not transforming():
        return x
    gathered: Tensor = _Whole.apply(x.detach())
    return gathered


def any_true(mask: Tensor) -> bool:
    """Whether any entry is true, in any copy. Waits for the device."""
    return bool(whole(mask).any())


def all_true(x: Tensor) -> bool:
    """Whether all entries are true, in all copies. Waits for the device."""
    return bool(whole(x).all())


class _Record(TorchFunctionMode):
    """Notes every tensor that enters an operation without having come out of one."""

    def __init__(self, argument: Tensor) -> None:
        super().__init__()
        self.made = {id(argument): argument}
        self.found: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.made:
                self.found[id(leaf)] = leaf
        result = func(*args, **(kwargs or {}))
        # Holding on to what was made keeps its id from being given to another tensor.
        self.made.update({id(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)})
        return result


class _Substitute(TorchFunctionMode):
    """Replaces tensors by others wherever they enter an operation."""

    def __init__(self, replacements: dict[int, Tensor]) -> None:
        super().__init__()
        self.replacements = replacements

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def swap(leaf: Any) -> Any:
            return self.replacements.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

        args, kwargs = tree_map(swap, (args, kwargs or {}))
        return func(*args, **kwargs)


class ClosedOver:
    """The tensors that `function` uses beside its argument, found by running it once at `argument`."""

    def __init__(self, function: Callable[[Tensor], Tensor], argument: Tensor) -> None:
        argument = argument.clone()
        with torch.no_grad(), _Record(argument) as record:
            function(argument)
        self.function = function
        self.tensors = tuple(record.found.values())

    def bind(self, tensors: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        """The same function with `tensors` in place of the ones it closed over."""
        replacements = {id(old): new for old, new in zip(self.tensors, tensors, strict=True)}

        def bound(argument: Tensor) -> Tensor:
            with _Substitute(replacements):
                return self.function(argument)

        return bound
