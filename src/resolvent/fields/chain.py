"""Chains of linear layers and activations, with a Jacobian in closed form."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resolvent.fields.activations import derivative_of


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


@torch.no_grad()
def value_and_jacobian(layers: Sequence[nn.Module], t: object, y: Tensor) -> tuple[Tensor, Tensor]:
    """The output of the layers for y, (batch, n), and the Jacobian, (batch, m, n). The time t is ignored.

    It is forward mode by hand, with the tangents of all n directions at once, in far fewer calls than autograd.
    """
    tangents: Tensor | None = None  # (n, batch, width), one per direction; None is the identity.
    for layer in layers:
        x, y = y, layer(y)
        if isinstance(layer, nn.Linear):
            transposed = layer.weight.mT
            tangents = transposed[:, None].expand(-1, len(y), -1) if tangents is None else tangents @ transposed
            continue
        derivative = derivative_of(layer)
        assert derivative is not None
        if tangents is None:
            tangents = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[:, None].expand(-1, len(x), -1)
        tangents = derivative(layer, tangents, x, y)
    assert tangents is not None
    return y, tangents.permute(1, 2, 0)
