"""Fields that jump in time: their horizon, and how they are read at the end of a step."""

import torch
from torch import nn

from resolvent.fields import Piecewise
from resolvent.schemes.interval import Number


def right_end(field: object, dtype: torch.dtype) -> float:
    """The fraction of a step at which the field is read when its end is meant; 1 unless the field is piecewise.

    At a breakpoint a piecewise field takes its new value, but a step that ends there belongs to the old one: the n-th
    step has the n-th piece throughout. If the pieces depend on time through nothing but their succession, the field is
    read at the start of the step, which is also the paper's rule for steps that do not coincide with pieces. Otherwise
    it is read just before the end, by more than what `Piecewise` takes for rounding.
    """
    pieces = [piece for module in _piecewise(field) for piece in module.pieces]
    if not pieces:
        return 1.0
    if all(piece.autonomous for piece in pieces):
        return 0.0
    return 1 - 4 * torch.finfo(dtype).eps ** 0.5


def share_horizon(field: object, horizon: Number) -> None:
    """Tells the piecewise fields in a field the horizon of its block; raises where they have another one."""
    for module in _piecewise(field):
        module.share_horizon(horizon)


def _piecewise(field: object) -> list[Piecewise]:
    modules = field.modules() if isinstance(field, nn.Module) else ()
    return [module for module in modules if isinstance(module, Piecewise)]
