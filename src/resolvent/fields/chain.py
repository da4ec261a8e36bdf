"""Chains of layers: their value, and their Jacobian in closed form."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from resolvent.equation.function import ValueAndJacobian, has_value
from resolvent.fields.activations import Derivative, derivative_of
from resolvent.fields.columns import in_columns

Links = Sequence[tuple[nn.Module, Derivative | None]]
"""The layers, and the derivatives of those that are activations."""

# On a CPU the tangents of a layer should take at most this many bytes, so that they stay in the cache of a core.
_CACHED = 1 << 19
_MIN_ROWS = 512


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


def chain_value(links: Links, t: object, y: Tensor) -> Tensor:
    """The output of a chain for y, (batch, n), with its graph where autograd records. The time t is ignored.

    Samples are columns, as in `value_and_jacobian`: products with narrow weights take a fraction of the time. A large
    batch goes through the whole chain in parts that stay in the cache, and so does its backward pass.
    """
    parts = [_value(links, part) for part in _parts(links, y)]
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
    parts = _parts(links, y)
    if len(parts) == 1:
        columns, tangents = _with_tangents(links, y)
        return columns.t(), tangents.permute(2, 0, 1).expand(len(y), -1, -1)
    found = [_with_tangents(links, part) for part in parts]
    value = torch.cat([columns for columns, _ in found], dim=1)
    jacobian = torch.cat([t.expand(-1, -1, len(part)) for part, (_, t) in zip(parts, found, strict=True)], dim=2)
    return value.t(), jacobian.permute(2, 0, 1)


def _parts(links: Links, y: Tensor) -> Sequence[Tensor]:
    """Parts of a large batch on the CPU. They change the result of a sample by no more than rounding."""
    if len(y) <= _MIN_ROWS or not y.is_cpu:
        return (y,)
    width = max((layer.weight.shape[0] for layer, _ in links if isinstance(layer, nn.Linear)), default=1)
    most = _CACHED // (width * y.shape[1] * y.element_size())
    if not torch.is_grad_enabled():
        # Without a graph, more parts need less memory.
        most = min(most, -(-len(y) // 4))
    count = -(-len(y) // max(_MIN_ROWS, most))
    return y.split(-(-len(y) // count))


def _forward(links: Links, y: Tensor) -> Iterator[tuple[nn.Module, Derivative | None, Tensor, Tensor]]:
    """Goes through the layers: each with its derivative, its argument and its value, in columns, (width, batch)."""
    columns = y.t()
    for layer, derivative in links:
        argument = columns
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight, layer.bias
            columns = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)
        else:
            columns = layer(columns.t()).t()
        yield layer, derivative, argument, columns


def _value(links: Links, y: Tensor) -> Tensor:
    """The output for y in columns."""
    columns = y.t()
    for layer in _forward(links, y):
        columns = layer[-1]
    return columns


def _with_tangents(links: Links, y: Tensor) -> tuple[Tensor, Tensor]:
    """The output for y in columns, and its tangents, (m, n, batch); (m, n, 1) if there is no activation."""
    tangents: Tensor | None = None  # (width, n, 1); (width, n, batch) after the first activation.
    # Layer by layer together with the value, so that without a graph only one layer is in memory.
    for layer, derivative, argument, columns in _forward(links, y):
        with torch.no_grad():
            if isinstance(layer, nn.Linear):
                weight = layer.weight
                tangents = (
                    weight.unsqueeze(2)
                    if tangents is None
                    else (weight @ tangents.flatten(1)).view(-1, *tangents.shape[1:])
                )
                continue
            assert derivative is not None
            slopes = derivative(layer, argument.t(), columns.t()).t().unsqueeze(1)
            if tangents is None:
                tangents = torch.eye(y.shape[1], dtype=y.dtype, device=y.device).unsqueeze(2)
            # The weights themselves must not change.
            tangents = tangents * slopes if tangents.shape[2] == 1 else tangents.mul_(slopes)
    assert tangents is not None
    return columns, tangents
