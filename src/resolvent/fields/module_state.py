"""What decides which graph a module has, besides the values of its parameters and buffers: to notice later changes."""

from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from resolvent.fields.mlp import does_more

_OF_MODULES = frozenset((*vars(nn.Module()), "_compiled_call_impl", "_is_full_backward_hook"))
_SIMPLE = (type(None), bool, int, float, complex, str, bytes)
_NAMED = (*_SIMPLE, type, FunctionType, BuiltinFunctionType, Enum, torch.dtype, torch.device)
# Settings of layers of torch that a proof reads, besides those that `SamplesAlone` looks at each time.
_OF_LEAVES = ("normalized_shape", "inplace")
# How deep into an attribute it is compared, and how many parts each object there may have.
_DEEPEST = 6
_LARGEST = 1000

Places = Set[tuple[str, str]]
"""Attributes or tensors of modules: the name of the module, and that in it."""


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module, without its parametrizations."""
    return parametrize.type_before_parametrizations(module) if "parametrizations" in module._modules else type(module)


def state_of(
    module: nn.Module, is_leaf: Callable[[nn.Module], bool], ignored: Places = frozenset()
) -> list[Any] | None:
    """The kinds and names of all modules, the shapes of their tensors, and the attributes of those that are not leaves,
    as a list to compare. None if a module does more than its class says, or if the modes of the modules differ.

    It is made at each pass, so it has to be quick.

    Arguments:
        module: the root.
        is_leaf: whether the attributes of a module do not matter.
        ignored: tensors and attributes that do not count.
    """
    found: list[Any] = []
    names: dict[int, str] = {}
    mode: bool | None = None
    parts = [("", module)]
    for name, part in parts:
        found.append(name)
        if id(part) in names:
            found.append(names[id(part)])
            continue
        names[id(part)] = name
        if does_more(part):
            return None
        kind = kind_of(part)
        found.append(kind)
        for tensors in (part._parameters, part._buffers):
            for key, tensor in tensors.items():
                if not ignored or (name, key) not in ignored:
                    found += (key, None if tensor is None else tensor.shape)
        if is_leaf(part):
            found += [vars(part).get(setting) for setting in _OF_LEAVES]
        else:
            if mode not in (None, part.training):
                return None
            mode = part.training
            found += [own for own in attributes_of(part) if not ignored or (name, own[0]) not in ignored]
        for key, child in part._modules.items():
            if child is not None and key != "parametrizations":
                parts.append((f"{name}.{key}" if name else key, child))
    return found


def parametrized(module: nn.Module) -> Places:
    """The weights that are computed: the copy of a module for a pass holds them as its own."""
    return {
        (name, key)
        for name, part in module.named_modules()
        if "parametrizations" in part._modules
        for key in cast(nn.ModuleDict, part.parametrizations)
    }


def attributes_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The attributes of a module that are not tensors or modules of it, with descriptions that can be compared."""
    return ((key, _described(value)) for key, value in vars(module).items() if key not in _OF_MODULES)


def _described(value: Any) -> Any:
    if type(value) in _SIMPLE:
        return type(value), value
    found: list[Any] = []
    _describe(value, found, _DEEPEST)
    return found


def _describe(value: Any, found: list[Any], depth: int) -> None:
    """Appends what can be compared later: values where possible, and otherwise which object it is."""
    found.append(type(value))
    if isinstance(value, _NAMED):
        found.append(value)
    elif isinstance(value, Tensor):
        found += (id(value), value._version, value.shape)
    elif isinstance(value, nn.Module | fx.Proxy) or depth == 0:
        found.append(id(value))
    elif (parts := _parts(value)) is None and isinstance(value, Hashable) and not isinstance(value, tuple):
        found.append(value)
    elif parts is None or len(found) > _LARGEST:
        found.append(object())  # It equals nothing, so the attribute counts as changed each time.
    else:
        found.append(len(parts))
        for part in parts:
            _describe(part, found, depth - 1)


def _parts(value: Any) -> Sequence[Any] | None:
    """What an object is made of, if that is known, and not too much."""
    if isinstance(value, list | tuple | dict | set | frozenset) and len(value) > _LARGEST:
        return None
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.items()
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    attributes = getattr(type(value), "__dictoffset__", 0)
    return [*vars(value).items()] if attributes else None
