"""The multilayer perceptron as a vector field, and the Jacobian of chains of layers in closed form."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from resolvent.equation.function import ValueAndJacobian, value_has_graph
from resolvent.fields.activations import Derivative, derivative_of, nonexpansive, slopes_of
from resolvent.fields.base import Field, Time
from resolvent.fields.columns import in_columns
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


def chain_of(module: object) -> list[nn.Module] | None:
    """The layers of a plain, possibly nested `nn.Sequential` of `nn.Linear` and known activations; else None."""
    if type(module) is nn.Sequential and not has_hooks(module):
        parts = [chain_of(child) for child in module]
        return None if None in parts or not parts else [layer for part in parts if part for layer in part]
    return [module] if isinstance(module, nn.Module) and is_link(module) else None


def is_link(layer: nn.Module) -> bool:
    """Whether the layer may be part of a chain. Its weight may be parametrized."""
    if isinstance(layer, torch.jit.ScriptModule) or has_hooks(layer):
        return False
    return type(layer).forward is nn.Linear.forward or derivative_of(layer) is not None


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module does more than its `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def closed_form(layers: Sequence[nn.Module]) -> ValueAndJacobian:
    """`value_and_jacobian` of a chain, as a function of time and state."""
    return partial(value_and_jacobian, [(layer, derivative_of(layer)) for layer in layers])


@value_has_graph
def value_and_jacobian(
    links: Sequence[tuple[nn.Module, Derivative | None]], t: object, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The output of a chain for y, (batch, n), and the Jacobian, (batch, m, n), without a graph. The time t is ignored.

    It is forward mode by hand, with the tangents of all n directions at once, in far fewer calls than autograd. Samples
    are columns: a weight then multiplies all tangents from the left, without a copy. Activations get transposed views:
    for GELU on a CPU, torch takes several times as long if tensors are contiguous.

    Arguments:
        links: the layers, and the derivatives of those that are activations.
    """
    if torch.compiler.is_dynamo_compiling() and not torch.is_grad_enabled():
        return in_columns([layer for layer, _ in links], y)
    batch, n = y.shape
    columns, points = y.t(), []
    for layer, _ in links:
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight, layer.bias
            columns = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)
        else:
            x = columns.t()
            value = layer(x)
            points.append((x, value))
            columns = value.t()
    with torch.no_grad():
        product: Tensor | None = None  # (width, n, 1); (width, n, batch) after the first activation.
        remaining = iter(points)
        for layer, derivative in links:
            if isinstance(layer, nn.Linear):
                weight = layer.weight
                product = (
                    weight.unsqueeze(2)
                    if product is None
                    else (weight @ product.flatten(1)).view(-1, *product.shape[1:])
                )
                continue
            assert derivative is not None
            slopes = derivative(layer, *next(remaining)).t().unsqueeze(1)
            if product is None:
                product = torch.eye(n, dtype=y.dtype, device=y.device).unsqueeze(2)
            product = product * slopes
    assert product is not None
    return columns.t(), product.permute(2, 0, 1).expand(batch, -1, -1)
