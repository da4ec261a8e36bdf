"""What lets a solve, a loop that decides by the data, live inside the transforms of `torch.func`.

Two things stand in the way there. A decision such as "is any sample still running?" has one answer for each copy of
a vmapped function, so `whole` gathers all copies into an ordinary tensor. And a custom `autograd.Function` sees the
tensors of another level of nesting than the ones that F closed over, so `ClosedOver` finds those tensors and passes
them through the Function as arguments.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from resolvent.errors import ResolventError

# Whether a `torch.func` transform (vmap, grad, jvp, ...) is running.
transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active


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
    return bool((whole(mask) if transforming() else mask).any())


def all_true(x: Tensor) -> bool:
    """Whether all entries are true, in all copies. Waits for the device."""
    return bool((whole(x) if transforming() else x).all())


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
    """Replaces tensors by others wherever they enter an operation, and notes which ones did."""

    def __init__(self, replacements: dict[int, Tensor]) -> None:
        super().__init__()
        self.replacements = replacements
        self.met: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def swap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or id(leaf) not in self.replacements:
                return leaf
            self.met.add(id(leaf))
            return self.replacements[id(leaf)]

        args, kwargs = tree_map(swap, (args, kwargs or {}))
        return func(*args, **kwargs)


class ClosedOver:
    """The tensors that `function` uses beside its argument, found by running it at `argument`.

    It is run twice. What is the same tensor both times was there before; what is not was made on the way, by something
    that cannot be watched such as a custom autograd function, and is made again whenever the function is called.

    Modules are remembered with the tensors that they hold now. `torch.func.functional_call` puts its own weights into a
    module for the duration of a call, and a derivative is taken after that call has ended: `bind` puts them back.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], argument: Tensor) -> None:
        argument = argument.clone()
        first, second = _Record(argument), _Record(argument)
        with torch.no_grad():
            for record in (first, second):
                with record:
                    function(argument)
        found = {key: tensor for key, tensor in first.found.items() if second.found.get(key) is tensor}
        self.function = function
        self.tensors = tuple(found.values())
        self._held: list[tuple[dict[str, Any], str, Tensor | None]] = [
            (tensors, name, tensor)
            for module in modules_within(function)
            for tensors in cast(tuple[dict[str, Any], ...], (module._parameters, module._buffers))
            for name, tensor in tensors.items()
            if id(tensor) in found
        ]

    def bind(self, tensors: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        """The same function with `tensors` in place of the ones it closed over."""
        replacements = {id(old): new for old, new in zip(self.tensors, tensors, strict=True)}

        def bound(argument: Tensor) -> Tensor:
            with self._modules_as_they_were(), _Substitute(replacements) as substitute:
                image = self.function(argument)
            if len(substitute.met) < len(replacements):
                gone = len(replacements) - len(substitute.met)
                raise ResolventError(
                    f"F used {len(replacements)} tensors in the forward pass, of which {gone} were gone when it was "
                    "differentiated inside torch.func: its derivative would be that of another function. Let F hold "
                    "the modules whose weights it uses, "
                    "or close over the tensors themselves."
                )
            return image

        return bound

    @contextmanager
    def _modules_as_they_were(self) -> Iterator[None]:
        now = [(tensors, name, tensors[name]) for tensors, name, _ in self._held]
        try:
            for tensors, name, tensor in self._held:
                tensors[name] = tensor
            yield
        finally:
            for tensors, name, tensor in now:
                tensors[name] = tensor


def modules_within(function: Any) -> list[nn.Module]:
    """The modules that a callable reaches: itself, what it closes over or is bound to, and their submodules."""
    seen: dict[int, Any] = {}
    modules: dict[int, nn.Module] = {}
    waiting = [function]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, nn.Module):
            modules.update({id(module): module for module in thing.modules()})
        waiting += _held_by(thing)
    return list(modules.values())


def _held_by(thing: Any) -> list[Any]:
    """What a function closes over or names, what a method is bound to, the items of a container, the attributes of an
    object."""
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        named = [thing.__globals__.get(name) for name in thing.__code__.co_names]
        return [*cells, *(thing.__defaults__ or ()), *(x for x in named if isinstance(x, nn.Module))]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, list | tuple | set):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, Tensor | type | ModuleType) or not hasattr(thing, "__dict__"):
        return []
    return list(vars(thing).values())


def _filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
