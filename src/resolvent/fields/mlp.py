"""The multilayer perceptron as a vector field."""

import math
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from resolvent.fields.activations import nonexpansive, slopes_of
from resolvent.fields.base import Field, Time
from resolvent.fields.chain import closed_form, is_link
from resolvent.fields.weights import initialise, share_bound
from resolvent.spectral import Disc, norm_bound


class MLP(Field):
    """A multilayer perceptron that maps R^dim to itself.

        F(y) = G_out s(G_n ... s(G_1 s(G_in y + b_0) + b_1) ... + b_n)

    Arguments:
        dim: size of the state.
        width: size of the hidden layers.
        depth: number n of square matrices between G_in and G_out; there are n + 1 activations.
        activation: s, a module that acts elementwise; GELU by default.
        bound: if given, an upper limit for the Lipschitz constant of F: each of the n + 2 matrices is normalised to
            bound^(1/(n+2)), and the activation divided by its Lipschitz constant if that exceeds 1.
        slopes: smallest and largest slope of an unknown activation; needed only with a bound.
        always: whether matrices whose norm is below their share are normalised too.
        power_iterations: see `resolvent.spectral.spectral_norm`.
        init: "xavier" (uniform) or "xavier_unit"; the biases start at zero, see `resolvent.fields.initialise`.

    Reference: Reshniak and Webster, Robust learning with implicit residual networks, 2021.
    """

    rowwise = True
    autonomous = True

    def __init__(
        self,
        dim: int,
        width: int,
        depth: int,
        activation: nn.Module | None = None,
        *,
        bound: float | None = None,
        slopes: tuple[float, float] | None = None,
        always: bool = False,
        power_iterations: int = 1,
        init: str = "xavier",
    ) -> None:
        super().__init__()
        if dim < 1 or width < 1 or depth < 0:
            raise ValueError(f"dim and width must be at least 1 and depth at least 0, got {dim}, {width} and {depth}")
        self.shape = (dim,)
        self.bound = bound
        self.activation = nn.GELU() if activation is None else activation
        widths = [dim, *[width] * (depth + 1), dim]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths[:-1]))
        self.layers.append(nn.Linear(width, dim, bias=False))
        initialise(self.layers, init)
        if bound is not None:
            self.activation = nonexpansive(self.activation, slopes)
            shapes = [(size,) for size in widths[:-1]]
            share_bound(list(self.layers), shapes, bound, power_iterations, always)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            y = self.activation(layer(y))
        value: Tensor = last(y)
        return value

    @property
    def value_and_jacobian(self) -> Callable[[Time, Tensor], tuple[Tensor, Tensor]] | None:
        if type(self).forward is not MLP.forward or not all(is_link(part) for part in (*self.layers, self.activation)):
            return None
        *hidden, last = self.layers
        parts = [*(part for layer in hidden for part in (layer, self.activation)), last]
        return closed_form(parts)

    def disc(self) -> Disc:
        steepness = slopes_of(self.activation).lipschitz ** (len(self.layers) - 1)
        return Disc(0.0, steepness * math.prod(norm_bound(layer).value for layer in self.layers))
