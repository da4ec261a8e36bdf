"""The tensors that functions close over: gradients flow to them, but they are no parameters of the layer."""

from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from resolvent.blocks.randomness import FrozenRandomness
from resolvent.fields.autonomous import Autonomous


def closed_over(layer: nn.Module) -> list[Tensor]:
    """The tensors that require gradients among what the plain functions of a layer close over or read as globals, and
    the parameters of modules among it. `torch.compile` traces it, and finds the tensors in the same order."""
    wrappers = [part for part in layer.modules() if isinstance(part, Autonomous | FrozenRandomness)]
    called = [getattr(layer, "field", None), getattr(layer, "f", None), *[part.module for part in wrappers]]
    waiting: list[Any] = [thing for thing in called if not isinstance(thing, nn.Module)]
    seen: list[Any] = []
    found: list[Tensor] = []
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, Tensor):
            if thing.requires_grad:
                found.append(thing)
        elif isinstance(thing, nn.Module):
            found.extend([parameter for parameter in thing.parameters() if parameter.requires_grad])
        elif not any(thing is other for other in seen):
            seen.append(thing)
            waiting.extend(_held_by(thing))
    return found


def _held_by(thing: Any) -> list[Any]:
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        named = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [*cells, *[value for value in named if isinstance(value, Tensor | nn.Module)]]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    return list(thing) if isinstance(thing, list | tuple) else []
