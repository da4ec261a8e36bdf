"""What is measured: a network of theta layers, its data and its loss."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import resolvent as rs

Convert = Callable[[rs.ThetaBlock], nn.Module]
"""What stands in for a block: a module with its `forward` and `trajectory`, and with the block's field in it."""


@dataclass(frozen=True)
class Task:
    """One training step: `loss(model, batch)` and its gradients with respect to all parameters of the model.

    Attributes:
        row: of the table, such as "B1".
        title: what it is.
        theta: of the layers.
        tolerance: for |z - x - theta h F(z)| / max(|x|, |z|), z = (1 - theta) x + theta y, of every layer and sample.
        model: with theta layers in it, as instances of `ThetaBlock`.
        batch: its data.
        loss: maps the model, or something that is called like it, and its data to a number.
    """

    row: str
    title: str
    theta: float
    tolerance: float
    model: nn.Module
    batch: Any
    loss: Callable[[Any, Any], Tensor]

    @property
    def name(self) -> str:
        return f"{self.row} {self.title}, theta={self.theta:g}"


def blocks(model: nn.Module) -> dict[str, rs.ThetaBlock]:
    """The theta layers of a model, by name and in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, rs.ThetaBlock)}


def with_layers(model: nn.Module, convert: Convert) -> nn.Module:
    """A copy of the model with something else in the place of its theta layers, on copies of the same weights."""
    model = copy.deepcopy(model)
    for name, block in blocks(model).items():
        model.set_submodule(name, convert(block))
    return model
