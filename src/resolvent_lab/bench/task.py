"""Tasks: a network of theta layers, its data and its loss."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import resolvent as rs

Convert = Callable[[rs.ThetaBlock], nn.Module]
"""Replaces a block by a module with the same `forward`, `trajectory` and field."""


@dataclass(frozen=True)
class Task:
    """One training step: `loss(model, batch)` and its gradients with respect to all parameters of the model.

    Attributes:
        row: row of the table, such as "B1".
        title: of the network.
        theta: of the layers.
        tolerance: of |z - x - theta h F(z)| / max(|x|, |z|), z = (1 - theta) x + theta y, for every layer and sample.
        model: contains instances of `ThetaBlock`.
        batch: the data.
        loss: maps the model, or a callable with the same signature, and the data to a number.
    """

    row: str
    title: str
    theta: float
    tolerance: float
    model: nn.Module
    batch: Any
    loss: Callable[[Any, Any], Tensor]


def blocks(model: nn.Module) -> dict[str, rs.ThetaBlock]:
    """The theta blocks of a model by name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, rs.ThetaBlock)}


def with_layers(model: nn.Module, convert: Convert) -> nn.Module:
    """A copy of the model in which `convert` replaces the theta blocks. The weights are copied, too."""
    model = copy.deepcopy(model)
    for name, block in blocks(model).items():
        model.set_submodule(name, convert(block))
    return model
