"""Arguments as tensors, numbers and text, which is all that the operations of a graph accept."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

Packed = tuple[Any, ...]
"""Nested tuples of text and constants, whose `repr` is a literal: what remains of arguments without their tensors and
floating-point numbers."""


def pack(value: Any, tensors: list[Tensor], numbers: list[float]) -> Packed:
    """The arguments without their tensors and numbers, which are appended to the lists. `torch.compile` traces it."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor",)
    if isinstance(value, float):
        numbers.append(value)
        return ("number",)
    if value is None or isinstance(value, int | str):
        return ("constant", value)
    if type(value) in (tuple, list):
        kind = "tuple" if type(value) is tuple else "list"
        return (kind, *[pack(part, tensors, numbers) for part in value])
    if type(value) is dict:
        return ("dict", *[(key, pack(part, tensors, numbers)) for key, part in value.items()])
    raise ValueError(
        "a layer inside torch.compile takes tensors, numbers and text, alone or in tuples, lists and dictionaries, got "
        f"{type(value).__name__}: unpack it before the call, or call the layer outside of the compiled function."
    )


def unpack(packed: Packed, tensors: Iterator[Tensor], numbers: Iterator[float]) -> Any:
    """The inverse of `pack`."""
    kind, *parts = packed
    if kind == "tensor":
        return next(tensors)
    if kind == "number":
        return next(numbers)
    if kind == "constant":
        return parts[0]
    if kind == "dict":
        return {key: unpack(part, tensors, numbers) for key, part in parts}
    items = [unpack(part, tensors, numbers) for part in parts]
    return tuple(items) if kind == "tuple" else items
