"""`fixed_steps`: a context in which a model makes fixed numbers of solver steps, so that it can be recorded."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from resolvent.blocks.block import Block
from resolvent.blocks.equilibrium import Equilibrium
from resolvent.blocks.strategies import LayerByLayer
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution
from resolvent.equation.stopping import FixedSteps


class Steps(NamedTuple):
    """The numbers of steps of the solves of a block: of its layers, and of linear systems, in the backward pass or for
    tangents."""

    layers: int
    linear: int


def solving(model: nn.Module) -> list[Block | Equilibrium]:
    """The blocks and equilibria of a model."""
    return [module for module in model.modules() if isinstance(module, Block | Equilibrium)]


@contextmanager
def fixed_steps(model: nn.Module, steps: Sequence[Steps], observe: Callable[[int, Solution], None]) -> Iterator[None]:
    """A context in which the blocks and equilibria of the model make fixed numbers of steps per solve, layer by layer,
    and pass their solutions to `observe`, with the number of the block.

    Arguments:
        model: an `nn.Module`.
        steps: for each of its blocks, in the order of `solving`.
        observe: called after every solve.
    """
    before = [(block, block.options) for block in solving(model)]
    strategies = [(block, block.strategy) for block, _ in before if isinstance(block, Block)]
    try:
        for number, ((block, options), own) in enumerate(zip(before, steps, strict=True)):
            block.options = with_fixed_steps(options, own, partial(observe, number))
        for block, _ in strategies:
            block.strategy = LayerByLayer()
        yield
    finally:
        for block, options in before:
            block.options = options
        for block, strategy in strategies:
            block.strategy = strategy


def with_fixed_steps(options: SolveOptions, steps: Steps, observe: Callable[[Solution], None]) -> SolveOptions:
    """The options with fixed numbers of steps."""
    adjoint, atol = options.adjoint, options.stopping.atol
    if isinstance(atol, Tensor):
        raise ValueError(
            "a pass with fixed steps does not test single components: take a number as atol of rs.Stopping(...)."
        )
    stopping = FixedSteps(steps.layers, rtol=options.stopping.rtol, atol=atol)
    if isinstance(adjoint, ImplicitAdjoint):  # Its own tolerance would be checked.
        linear = FixedSteps(steps.linear, rtol=stopping.for_backward().rtol)
        adjoint = dataclasses.replace(adjoint, stopping=linear, on_failure=None)
    return dataclasses.replace(options, stopping=stopping, adjoint=adjoint, on_failure="ignore", observe=observe)
