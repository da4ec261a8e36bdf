"""Frozen weights: a pass uses the same weights throughout.

A pass works with a copy of the field's modules. It stores nothing in the field or in globals, so passes in several
threads are independent.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map

from resolvent.blocks.randomness import FrozenRandomness, draw_seed
from resolvent.equation import torch_func

T = TypeVar("T")
Change = Callable[[str, nn.Module], dict[str, Any]]


@contextmanager
def frozen_weights(field: T) -> Iterator[T]:
    """The field for one pass: its parametrized weights (a spectral normalisation, say) are computed once, and each
    `FrozenRandomness` draws its seed.

    A field without either is yielded unchanged. Otherwise the modules with such weights, and those that
    contain them, are copied: the copies hold the computed weights and share everything else with the field. So anything
    an evaluation writes to an attribute of a copied module is lost. A module that the field holds other than as a
    submodule (in a list, in a closure) is not frozen: its weights are computed at every evaluation.

    The weights are computed on entry, in the grad mode of the caller, because the first evaluation may come from a
    solver, without a graph. In inference mode they are computed outside it, and weights made in it are copied, because
    solvers and estimators differentiate the field even there.
    """
    modules = list(field.modules()) if isinstance(field, nn.Module) else []
    _refuse_sharded(modules)
    with outside_inference():
        if any(map(_holds_inference_tensors, modules)):
            made = {name: tensor.clone() for name, tensor in weights_of(field).items() if tensor.is_inference()}
            field = with_weights(field, made)
        frozen = _copy(cast(nn.Module, field), _computed) if any(map(_changes, modules)) else field
    yield cast(T, frozen)


def _refuse_sharded(modules: Sequence[nn.Module]) -> None:
    """Raises if the weights of a part of the field, its first module, are gathered only while that part is called."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    kinds = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
    for module in modules:
        if isinstance(module, kinds):
            name = next(name for name, part in modules[0].named_modules() if part is module)
            raise ValueError(
                f"{name or 'the field'} is sharded by itself: its weights are gathered only while it is called, but a "
                "solver evaluates and differentiates it many times. Apply fully_shard to the block, or to a module "
                "that contains the block."
            )


def weights_of(field: Any) -> dict[str, Tensor]:
    """All parameters and buffers of a field by name; a shared tensor appears under each of its names."""
    modules = field.named_modules() if isinstance(field, nn.Module) else ()
    return {
        f"{name}.{key}" if name else key: tensor
        for name, module in modules
        for key, tensor in (module._parameters | module._buffers).items()
        if tensor is not None
    }


def with_weights(field: T, weights: Mapping[str, Tensor | None]) -> T:
    """A copy of the field with other parameters and buffers; the names are those of `weights_of`."""

    def change(name: str, module: nn.Module) -> dict[str, Any]:
        prefix = f"{name}." if name else ""
        if not any(prefix + key in weights for key in (*module._parameters, *module._buffers)):
            return {}
        return {
            "_parameters": {key: weights.get(prefix + key, own) for key, own in module._parameters.items()},
            "_buffers": {key: weights.get(prefix + key, own) for key, own in module._buffers.items()},
        }

    return cast(T, _copy(field, change)) if isinstance(field, nn.Module) else field


@contextmanager
def outside_inference(*inputs: Any) -> Iterator[tuple[Any, ...]]:
    """A context outside inference mode; yields copies of inputs that were made in it.

    Solvers need derivatives of the field even there, and autograd cannot use parametrized weights computed in it.
    """
    if not torch.is_inference_mode_enabled():
        yield inputs
        return
    with torch.inference_mode(False), torch.no_grad():
        yield tree_map(torch_func.outside_inference, inputs)


def _holds_inference_tensors(module: nn.Module) -> bool:
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None and tensor.is_inference() for tensor in tensors)


def _changes(module: nn.Module) -> bool:
    """Whether a module may have parametrizations, or draws random numbers."""
    return "parametrizations" in module._modules or isinstance(module, FrozenRandomness)


def _computed(_: str, module: nn.Module) -> dict[str, Any]:
    """The attributes that replace a module's parametrizations, or its random numbers."""
    if isinstance(module, FrozenRandomness):
        return {"_seed": draw_seed()}
    # Looked up first: for modules without parametrizations, torch's test takes longer than everything else here.
    if "parametrizations" not in module._modules or not parametrize.is_parametrized(module):
        return {}
    # Not read from the module: torch would use a cache that all threads share.
    weights = {name: compute() for name, compute in cast(nn.ModuleDict, module.parametrizations).items()}
    others = {name: child for name, child in module._modules.items() if name != "parametrizations"}
    return {"_parameters": module._parameters | weights, "_modules": others}


def _copy(module: nn.Module, change: Change, name: str = "", known: dict[int, nn.Module] | None = None) -> nn.Module:
    """The module, or a copy of it if `change` changes attributes of it or of a submodule.

    Arguments:
        module: the root of a tree.
        change: takes the name of a module, as in `named_modules`, and the module; returns the attributes that differ.
        name: of the module.
        known: the results for modules visited before, so that shared modules stay shared.
    """
    known = {} if known is None else known
    if id(module) in known:
        return known[id(module)]
    attributes = change(name, module)
    prefix = f"{name}." if name else ""
    modules = {
        key: child if child is None else _copy(child, change, prefix + key, known)
        for key, child in attributes.get("_modules", module._modules).items()
    }
    if attributes or any(modules[key] is not child for key, child in module._modules.items()):
        # With its parametrizations computed, the copy has its original class.
        kept = type(module) if "parametrizations" in modules else parametrize.type_before_parametrizations(module)
        copy: nn.Module = object.__new__(kept)
        copy.__dict__ = {**module.__dict__, **attributes, "_modules": modules}
        _unbind_compiled(copy)
    else:
        copy = module
    known[id(module)] = copy
    return copy


def _unbind_compiled(copy: nn.Module) -> None:
    """Drops references of `torch.compile` to the original module."""
    if "dynamo_ctx" in copy.__dict__:
        # The result of torch.compile(module): it reuses the graphs compiled before.
        copy._initialize()  # type: ignore[operator]
    # The result of module.compile() cannot be rebuilt: the copy runs in eager mode.
    copy.__dict__.pop("_compiled_call_impl", None)
