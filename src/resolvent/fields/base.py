"""`Field`: the base class of vector fields, and checks of arguments that must be fields."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from resolvent.equation.linear_part import LinearPart
from resolvent.spectral import Disc

Time = float | Tensor


class Field(nn.Module, ABC):
    """A vector field F(t, y), the right-hand side of y' = F(t, y).

    A subclass defines `forward` and declares what it can with the attributes below, which solvers, blocks and
    certificates read. What is not declared is not assumed: they then use a slower method, or raise.
    """

    rowwise: bool = False
    """Whether each sample is treated alone and all alike, so that F may be called with another number of rows. Solves
    are then faster; `rs.check_field` checks it."""

    autonomous: bool = False
    """Whether F does not depend on t."""

    shape: tuple[int, ...] | None = None
    """The only sample shape the field accepts, or None if it accepts several."""

    bound: float | None = None
    """The Lipschitz constant that the field keeps during training, up to the accuracy of the power method (see
    `resolvent.spectral.spectral_norm`), or None. The certified value for the current weights is `lipschitz()`."""

    @abstractmethod
    def forward(self, t: Time, y: Tensor) -> Tensor:
        """Evaluates F.

        Arguments:
            t: time, a float, a 0-d tensor, or (batch,) with one time per sample.
            y: states, (batch, *shape).

        Returns:
            F(t, y), (batch, *shape).
        """

    @property
    def linear_part(self) -> float | Tensor | LinearPart | None:
        """The multiplier c of a linear part worth splitting off, F(t, y) = c y + N(t, y), or None.

        It is a number, a tensor that broadcasts to one sample, or a map with its own solve such as
        `rs.fields.FourierPart`. An implicit solver moves c y to the left-hand side, so a stiff linear part does no
        harm.
        """
        return None

    @property
    def value_and_jacobian(self) -> Callable[[Time, Tensor], tuple[Tensor, Tensor]] | None:
        """A function that returns F(t, y) and its Jacobian (batch, n, n) without a graph, for vector states; None to
        use autograd. It dominates the cost of Newton's method for few unknowns.
        """
        return None

    def disc(self) -> Disc:
        """A disc guaranteed to contain all slopes of F(t, .), for every t, with the current weights."""
        raise ValueError(
            f"{type(self).__name__} has no guaranteed Lipschitz constant: use a field that has one, such as "
            "fields.MLP(..., bound=1.0), or state it with Autonomous(module, lipschitz=...)"
        )

    def lipschitz(self) -> float:
        """A guaranteed Lipschitz constant of F(t, .), for every t, with the current weights."""
        return self.disc().lipschitz


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
