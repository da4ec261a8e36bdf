"""Support for `torch.func` transforms around a solve, which is a loop with data-dependent decisions.

There are two problems. A decision such as "is any sample still running?" has one answer per copy of a vmapped function,
so `whole` gathers all copies into an ordinary tensor. A custom `autograd.Function` sees tensors of another level of
nesting than those F closed over, so `ClosedOver` finds these tensors and passes them to the Function as arguments.
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
    """A copy of a tensor made in inference mode, which autograd refuses to save; anything else unchanged."""
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
    """`x` of all copies of a vmapped function, as one ordinary tensor."""
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
    """Records every tensor that enters an operation but is not the result of one."""

    def __init__(self, argument: Tensor) -> None:
        super().__init__()
        self.made = {id(argument): argument}
        self.found: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.made:
                self.found[id(leaf)] = leaf
        result = func(*args, **(kwargs or {}))
        # Keeps the results alive, so that their ids are not reused.
        self.made.update({id(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)})
        return result


class _Substitute(TorchFunctionMode):
    """Replaces tensors wherever they enter an operation, and records which ones it replaced."""

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
    """The tensors that `function` uses besides its argument, found by running it at `argument`.

    It runs twice. A tensor that appears both times existed before. Any other was created during the call, by something
    that cannot be observed such as a custom autograd function, and every call creates it again.

    Modules are recorded with the tensors they hold now. `torch.func.functional_call` swaps weights into a module only
    during a call, and derivatives are taken after that call: `bind` puts the weights back.
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
        """The same function with `tensors` in place of those it closed over."""
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
    modules: dict[int, nn.Module] = {}
    for thing in _things_within(function):
        if isinstance(thing, nn.Module):
            modules.update({id(module): module for module in thing.modules()})
    return list(modules.values())


def tensors_within(function: Any) -> Iterator[Tensor]:
    """The tensors that a callable reaches, found one after the other."""
    return (thing for thing in _things_within(function) if isinstance(thing, Tensor))


def _things_within(function: Any) -> Iterator[Any]:
    """Everything that a callable reaches by what it closes over or is bound to, each once."""
    seen: dict[int, Any] = {}
    waiting = [function]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen[id(thing)] = thing
            yield thing
            waiting += _held_by(thing)


def _held_by(thing: Any) -> list[Any]:
    """The objects that `thing` refers to: the closure and globals of a function, the object and function of a method,
    the items of a container, the attributes of an object."""
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
