"""Checks of arguments that must be fields."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from resolvent.fields.base import Field


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether the signature of a function or module accepts `count` positional arguments."""
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):  # Functions written in C may have no signature.
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def check_callable_field(field: object, name: str = "field") -> None:
    """Raises unless the argument `name` can be called with (t, y)."""
    if not callable(field):
        raise ValueError(f"{name} must be callable with (t, y), got {field!r}.")
    if isinstance(field, Field) or takes(field, 2):
        return
    advice = "give it the arguments (t, y)"
    if takes(field, 1):
        advice = f"it takes one, so wrap it: rs.Autonomous({'module' if isinstance(field, nn.Module) else 'function'})"
    raise ValueError(f"{name} is called with the two arguments (t, y), which {_name(field)} cannot take: {advice}.")


def expect_field(field: object, owner: str, wrapped: str = "rs.Autonomous(module)") -> None:
    """Raises unless the argument is a `Field`: the owner reads its attributes."""
    if not isinstance(field, Field):
        raise ValueError(
            f"{owner} takes a field, such as rs.fields.MLP(...), got {_name(field)}: wrap a module in {wrapped}, or "
            "derive a class from rs.fields.Field."
        )


def _name(value: object) -> str:
    if isinstance(value, nn.Module):
        return type(value).__name__
    return getattr(value, "__name__", repr(value))
