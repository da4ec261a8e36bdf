"""Activations and their slopes, for bounds on networks."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Slopes(NamedTuple):
    """An interval that contains every difference quotient of a function of one variable."""

    low: float
    high: float

    @property
    def lipschitz(self) -> float:
        return max(abs(self.low), abs(self.high))


class Sin(nn.Module):
    """The sine as an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


# The extrema of GELU, SiLU and Mish were found numerically and are rounded away from zero in the last digit.
_GELU = {"none": Slopes(-0.128904145186, 1.128904145186), "tanh": Slopes(-0.128993068659, 1.128993068659)}
_SELU = 1.0507009873554805 * 1.6732632423543772

_SLOPES: dict[type[nn.Module], Callable[[Any], Slopes]] = {
    Sin: lambda _: Slopes(-1.0, 1.0),
    nn.CELU: lambda a: Slopes(0.0, 1.0 if a.alpha > 0 else math.inf),
    nn.ELU: lambda a: Slopes(min(0.0, a.alpha), max(1.0, a.alpha)),
    nn.GELU: lambda a: _GELU[a.approximate],
    nn.Hardsigmoid: lambda _: Slopes(0.0, 1 / 6),
    nn.Hardswish: lambda _: Slopes(-0.5, 1.5),
    nn.Hardtanh: lambda _: Slopes(0.0, 1.0),
    nn.Identity: lambda _: Slopes(1.0, 1.0),
    nn.LeakyReLU: lambda a: Slopes(min(1.0, a.negative_slope), max(1.0, a.negative_slope)),
    nn.LogSigmoid: lambda _: Slopes(0.0, 1.0),
    nn.Mish: lambda _: Slopes(-0.112526122390, 1.088498161252),
    nn.ReLU: lambda _: Slopes(0.0, 1.0),
    nn.ReLU6: lambda _: Slopes(0.0, 1.0),
    nn.SELU: lambda _: Slopes(0.0, _SELU),
    nn.SiLU: lambda _: Slopes(-0.099839320129, 1.099839320129),
    nn.Sigmoid: lambda _: Slopes(0.0, 0.25),
    nn.Softplus: lambda _: Slopes(0.0, 1.0),
    nn.Softshrink: lambda _: Slopes(0.0, 1.0),
    nn.Softsign: lambda _: Slopes(0.0, 1.0),
    nn.Tanh: lambda _: Slopes(0.0, 1.0),
    nn.Tanhshrink: lambda _: Slopes(0.0, 1.0),
}


# s'(x), from x and y = s(x).
Derivative = Callable[[Any, Tensor, Tensor], Tensor]
_DERIVATIVES: dict[type[nn.Module], Derivative] = {
    Sin: lambda _, x, y: torch.cos(x),
    nn.GELU: lambda a, x, y: torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate=a.approximate),
    nn.Identity: lambda _, x, y: torch.ones_like(x),
    nn.ReLU: lambda _, x, y: y.sign(),
    nn.Sigmoid: lambda _, x, y: y * (1 - y),
    nn.SiLU: lambda _, x, y: torch.ops.aten.silu_backward(torch.ones_like(x), x),
    nn.Softplus: lambda a, x, y: torch.sigmoid(a.beta * x),
    nn.Tanh: lambda _, x, y: 1 - y * y,
}


class Rescaled(nn.Module):
    """An activation divided by its Lipschitz constant, if that exceeds 1."""

    def __init__(self, activation: nn.Module, slopes: Slopes) -> None:
        super().__init__()
        if not -math.inf < slopes.low <= slopes.high < math.inf:
            raise ValueError(f"slopes must be finite, the smallest and then the largest, got {tuple(slopes)}")
        self.activation = activation
        self.divisor = max(1.0, slopes.lipschitz)
        self.slopes = Slopes(slopes.low / self.divisor, slopes.high / self.divisor)

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.activation(x)
        return value / self.divisor

    def extra_repr(self) -> str:
        return f"divisor={self.divisor:.6g}"


def is_activation(module: nn.Module) -> bool:
    """Whether the slopes of the module are known."""
    return isinstance(module, Rescaled) or type(module) in _SLOPES


def derivative_of(activation: nn.Module) -> Derivative | None:
    """s'(x) as a function (activation, x, y) of x and y = s(x); None if it is not known, or if x is needed but is
    overwritten by y."""
    if not isinstance(activation, Rescaled):
        found = _DERIVATIVES.get(type(activation))
        # Asking a module for an attribute that it does not have takes as long as all else here.
        overwrites = found is not None and vars(activation).get("inplace", False) and type(activation) is not nn.ReLU
        return None if overwrites else found
    inner = derivative_of(activation.activation)
    if inner is None:
        return None
    known = inner
    return lambda a, x, y: known(a.activation, x, y * a.divisor) / a.divisor


def slopes_of(activation: nn.Module) -> Slopes:
    """Returns the smallest and the largest slope of an activation.

    Arguments:
        activation: a module that acts elementwise. Raises for modules with learned slopes and functions with jumps.
    """
    if isinstance(activation, Rescaled):
        return activation.slopes
    if type(activation) in _SLOPES:
        return _SLOPES[type(activation)](activation)
    known = ", ".join(sorted(kind.__name__ for kind in _SLOPES))
    raise ValueError(
        f"the slopes of {type(activation).__name__} are not known, so a field that uses it has no bound: give "
        f"slopes=(smallest, largest), or choose one of {known}"
    )


def nonexpansive(activation: nn.Module, slopes: tuple[float, float] | None = None) -> nn.Module:
    """Returns the activation, divided by its Lipschitz constant if that exceeds 1 (GELU: 1.129).

    Arguments:
        activation: a module that acts elementwise.
        slopes: its smallest and largest slope, if it is not in the table.
    """
    if slopes is not None:
        return Rescaled(activation, Slopes(*slopes))
    known = slopes_of(activation)
    return activation if known.lipschitz <= 1 else Rescaled(activation, known)
