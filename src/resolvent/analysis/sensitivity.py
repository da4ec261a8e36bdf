"""`local_lipschitz`: how much a block or a network amplifies small changes of its input."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.krylov import extreme_eigenvalues
from resolvent.blocks import Block
from resolvent.blocks.pass_ import Pass
from resolvent.blocks.strategies import LayerByLayer
from resolvent.blocks.weights import frozen_weights
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.jacobian import Jacobian
from resolvent.equation.structure import Structured, structure_of
from resolvent.fields.piecewise import right_end
from resolvent.schemes.interval import Field, Number


def local_lipschitz(model: Callable[[Any], Any], x: Structured, *, rtol: float = 1e-4, max_size: int = 100) -> Tensor:
    """The local Lipschitz constant of a block or a network at given inputs: |dy/dx|_2, per sample.

    Computed by the Lanczos method with J^T J, each step a product with J and one with J^T; it takes far fewer steps
    than the power iteration. The estimate approaches the norm from below and holds at these inputs; `lipschitz_bound`
    is certified and holds everywhere.

    Arguments:
        model: maps (batch, *shape) to (batch, *image), each sample alone. A `Block` is differentiated exactly, for any
            adjoint and memory.
        x: inputs, (batch, *shape), or several such tensors in a structure, whose entries count together.
        rtol: relative tolerance of the squared norm.
        max_size: the most steps; a RuntimeWarning reports if they were too few.

    Returns:
        (batch,), without a graph.
    """
    if isinstance(model, Block):
        with frozen_weights(model.field) as field:
            pass_, start = pass_through(model, field, x)
            return gain(Jacobian(lambda state: last_state(pass_, state), start), rtol=rtol, max_size=max_size)
    return gain(Jacobian(model, x), rtol=rtol, max_size=max_size)


def gain(jacobian: Jacobian, *, rtol: float = 1e-4, max_size: int = 100) -> Tensor:
    """The largest singular value of each sample's Jacobian, (batch,)."""

    def gram(v: Tensor) -> Tensor:
        return jacobian.transposed_product(jacobian.product(v))

    with torch.no_grad():
        squared = extreme_eigenvalues(gram, jacobian.point, which="rightmost", rtol=rtol, max_size=max_size)
    return squared.real.clamp(min=0).sqrt().squeeze(1)


def pass_through(
    block: Block, field: Field, x: Structured, t0: Number = 0.0, on_failure: str = "raise"
) -> tuple[Pass, Tensor]:
    """The pass of a block with its frozen field, layer by layer, with exact derivatives and all graphs kept; and the
    input as one tensor."""
    if not isinstance(x, Tensor):
        structure = structure_of(x, "x")
        field, x = structure.field(field), structure.flatten(x, "x")
    settings = block._settings(field, t0, right_end(field, x.dtype))
    options = replace(settings.options, adjoint=ImplicitAdjoint(), on_failure=on_failure)
    return replace(settings, options=options, strategy=LayerByLayer(), stores=True), x


def last_state(pass_: Pass, x: Tensor) -> Tensor:
    """The state at the end of a pass, (batch, *shape)."""
    state = x
    for step in pass_.strategy.steps(pass_, x):
        state = step.state
    return state
