"""`refuse_changing_modules`: modules that are not the same function in each call, found by their kind and settings."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from resolvent.blocks.randomness import FrozenRandomness

_NORMS = (_BatchNorm, _InstanceNorm)
_RANDOM = (_DropoutNd, nn.MultiheadAttention, nn.RReLU, nn.RNNBase)
_KINDS = (*_NORMS, *_RANDOM)


def refuse_changing_modules(module: nn.Module, prefix: str = "", place: str = "") -> None:
    """Raises if a submodule in training mode has batch statistics, running statistics or dropout.

    Called before each pass, for a module may change its mode and its probabilities at any time.

    Arguments:
        module: a field, or a function of an equilibrium.
        prefix: left out of names in the message.
        place: of the module in a network, in front of names.
    """
    if not _may_change(module):
        return
    frozen = {id(p) for part in module.modules() if isinstance(part, FrozenRandomness) for p in part.modules()}
    for name, part in module.named_modules():
        if part.training and _changes(part) and (isinstance(part, _NORMS) or id(part) not in frozen):
            full = ".".join(filter(None, (place, name.removeprefix(prefix)))) or "the field"
            raise ValueError(
                f"{full}, a {type(part).__name__}, gives another result each time it is called in training mode, and "
                "an implicit layer calls it many times: put this module alone in evaluation mode (module.eval() after "
                "each network.train(); batch norm then keeps its statistics, and its weights still learn), use "
                "GroupNorm or LayerNorm, or wrap what draws random numbers in rs.blocks.FrozenRandomness(...)."
            )


def _may_change(module: nn.Module) -> bool:
    """Whether any of the submodules changes, frozen or not. Nearly always none does: this takes a quarter of the time
    of a walk with `modules()`."""
    parts: list[nn.Module | None] = [module]
    for part in parts:  # They are added on the way.
        if part is not None:
            if part.training and isinstance(part, _KINDS) and _changes(part):
                return True
            parts += part._modules.values()
    return False


def _changes(module: nn.Module) -> bool:
    """Whether calls of a module in training mode change its result, or its statistics."""
    if isinstance(module, _InstanceNorm):
        return module.track_running_stats
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)
