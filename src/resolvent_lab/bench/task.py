"""Tasks: a network of implicit layers, its data and its loss."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.equilibria import EquilibriumLayer

Convert = Callable[[Any], nn.Module]
"""Replaces a block by a module with the same `forward` and `trajectory`, and the same field or function."""


@dataclass(frozen=True)
class Task:
    """One training step: `loss(model, batch)` and its gradients with respect to all parameters of the model.

    Attributes:
        row: row of the table, such as "B1".
        title: of the network.
        theta: of theta layers; None for equilibrium layers.
        tolerance: of |z - x - theta h F(z)| / max(|x|, |z|), z = (1 - theta) x + theta y, for every layer and sample;
            of |z - f(z, x)| / |z| for equilibrium layers.
        model: contains instances of `ThetaBlock`, or of `EquilibriumLayer`.
        batch: the data.
        loss: maps the model, or a callable with the same signature, and the data to a number.
        inputs: how many tensors of the batch, the first ones, are arguments of the model.
        network: one of several networks, which share one line of a table; the line has medians and ranges over them.
        graph_steps: solver steps of one more CUDA graph, beside the one that learns its numbers of steps.
        states: the states of each block, for a model that does not call its blocks one by one.
    """

    row: str
    title: str
    theta: float | None
    tolerance: float
    model: nn.Module
    batch: Any
    loss: Callable[[Any, Any], Tensor]
    inputs: int = 1
    network: str = ""
    graph_steps: int | None = None
    states: Callable[[Any, Any], list[Tensor]] | None = None


def blocks(model: nn.Module) -> dict[str, Any]:
    """The theta blocks and equilibrium layers of a model by name, in order."""
    kinds = (rs.ThetaBlock, EquilibriumLayer)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def with_layers(model: nn.Module, convert: Convert) -> nn.Module:
    """A copy of the model in which `convert` replaces these layers. The weights are copied, too."""
    model = copy.deepcopy(model)
    for name, block in blocks(model).items():
        model.set_submodule(name, convert(block))
    return model
