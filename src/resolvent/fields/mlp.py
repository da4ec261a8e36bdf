"""The multilayer perceptron as a vector field, and the Jacobian of chains of layers in closed form."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from resolvent.equation.function import ValueAndJacobian, has_value
from resolvent.fields.activations import Derivative, derivative_of, nonexpansive, slopes_of
from resolvent.fields.base import Field, Time
from resolvent.fields.columns import in_columns
from resolvent.fields.weights import initialise, share_bound
from resolvent.spectral import Disc, norm_bound

Links = Sequence[tuple[nn.Module, Derivative | None]]
"""The layers of a chain, and the derivatives of those that are activations."""

# On a CPU the tangents of a layer should take at most this many bytes, so that they stay in the cache of a core.
_CACHED = 1 << 19
_MIN_ROWS = 512


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
        if type(self).forward is not MLP.forward or does_more(self):
            return None
        if not all(is_link(part) for part in (*self.layers, self.activation)):
            return None
        *hidden, last = self.layers
        parts = [*(part for layer in hidden for part in (layer, self.activation)), last]
        return closed_form(parts)

    def disc(self) -> Disc:
        steepness = slopes_of(self.activation).lipschitz ** (len(self.layers) - 1)
        return Disc(0.0, steepness * math.prod(norm_bound(layer).value for layer in self.layers))


def chain_of(module: object) -> list[nn.Module] | None:
    """The layers of a plain, possibly nested `nn.Sequential` of `nn.Linear` and known activations; else None."""
    if type(module) is nn.Sequential and not does_more(module):
        parts = [chain_of(child) for child in module]
        return None if None in parts or not parts else [layer for part in parts if part for layer in part]
    return [module] if isinstance(module, nn.Module) and is_link(module) else None


def is_link(layer: nn.Module) -> bool:
    """Whether the layer may be part of a chain. Its weight may be parametrized."""
    if isinstance(layer, torch.jit.ScriptModule) or does_more(layer):
        return False
    return type(layer).forward is nn.Linear.forward or derivative_of(layer) is not None


def does_more(module: nn.Module) -> bool:
    """Whether calling the module does more than the `forward` of its class."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    own_call = "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__
    return bool(hooks) or own_call or _has_any_global_hook()


def closed_form(layers: Sequence[nn.Module]) -> ValueAndJacobian:
    """`value_and_jacobian` of a chain, as a function of time and state."""
    return partial(value_and_jacobian, [(layer, derivative_of(layer)) for layer in layers])


def chain_value(links: Links, t: object, y: Tensor) -> Tensor:
    """The output of a chain for y, (batch, n), with its graph where autograd records. The time t is ignored.

    Samples are columns, as in `value_and_jacobian`: products with narrow weights take a fraction of the time. A large
    batch goes through the whole chain in parts that stay in the cache, and so does its backward pass.
    """
    parts = []
    for part in _parts(links, y):
        columns = part.t()
        for layer, _ in links:
            columns = _product(layer, columns) if isinstance(layer, nn.Linear) else layer(columns.t()).t()
        parts.append(columns)
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).t()


@has_value(chain_value)
def value_and_jacobian(links: Links, t: object, y: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a chain for y, (batch, n), and the Jacobian, (batch, m, n), without a graph. The time t is ignored.

    It is forward mode by hand, with the tangents of all n directions at once, in far fewer calls than autograd. Samples
    are columns: a weight then multiplies all tangents from the left, without a copy. Activations get transposed views:
    for GELU on a CPU, torch takes several times as long if tensors are contiguous.
    """
    if torch.compiler.is_dynamo_compiling() and not torch.is_grad_enabled():
        return in_columns([layer for layer, _ in links], y)
    recording = torch.is_grad_enabled()
    values, jacobians = [], []
    for part in _parts(links, y):
        columns = part.t()
        tangents: Tensor | None = None  # (width, n, 1); (width, n, batch) after the first activation.
        # Value and tangents go through the layers together: without a graph, only one layer is in memory.
        for layer, derivative in links:
            if isinstance(layer, nn.Linear):
                columns, weight = _product(layer, columns), layer.weight
                weight = weight.detach() if recording else weight
                tangents = (
                    weight.unsqueeze(2)
                    if tangents is None
                    else (weight @ tangents.flatten(1)).view(len(weight), *tangents.shape[1:])
                )
                continue
            assert derivative is not None
            x = columns.t()
            value = layer(x)
            columns = value.t()
            point = (x.detach(), value.detach()) if recording else (x, value)
            slopes = derivative(layer, *point).t().unsqueeze(1)
            if tangents is None:
                tangents = torch.eye(y.shape[1], dtype=y.dtype, device=y.device).unsqueeze(2)
            # The weights themselves must not change.
            tangents = tangents * slopes if tangents.shape[2] == 1 else tangents.mul_(slopes)
        assert tangents is not None
        values.append(columns)
        jacobians.append(tangents.expand(-1, -1, part.shape[0]))
    if len(values) == 1:
        return values[0].t(), jacobians[0].permute(2, 0, 1)
    return torch.cat(values, dim=1).t(), torch.cat(jacobians, dim=2).permute(2, 0, 1)


def _product(layer: nn.Linear, columns: Tensor) -> Tensor:
    weight, bias = layer.weight, layer.bias
    return weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)


def _parts(links: Links, y: Tensor) -> Sequence[Tensor]:
    """Parts of a large batch on the CPU. They change the result of a sample by no more than rounding."""
    # A tracer's tensors are of a class of their own. Their size must not decide.
    if type(y) is not Tensor or not y.is_cpu or len(y) <= _MIN_ROWS:
        return (y,)
    width = max((layer.weight.shape[0] for layer, _ in links if isinstance(layer, nn.Linear)), default=1)
    most = _CACHED // (width * y.shape[1] * y.element_size())
    if not torch.is_grad_enabled():
        # Without a graph, more parts need less memory.
        most = min(most, -(-len(y) // 4))
    count = -(-len(y) // max(_MIN_ROWS, most))
    return y.split(-(-len(y) // count))
