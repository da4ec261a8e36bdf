"""`fixed_steps`: a context in which a model makes a fixed number of solver steps, so that it can be recorded."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from resolvent.blocks.block import Block
from resolvent.blocks.equilibrium import Equilibrium
from resolvent.blocks.strategies import LayerByLayer
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution
from resolvent.equation.stopping import FixedSteps


@contextmanager
def fixed_steps(model: nn.Module, steps: int, observe: Callable[[Solution], None]) -> Iterator[None]:
    """A context in which the blocks and equilibria of the model make a fixed number of steps per solve, layer by layer,
    and pass their solutions to `observe`."""
    before = [(block, block.options) for block in model.modules() if isinstance(block, Block | Equilibrium)]
    strategies = [(block, block.strategy) for block, _ in before if isinstance(block, Block)]
    try:
        for block, options in before:
            block.options = with_fixed_steps(options, steps, observe)
        for block, _ in strategies:
            block.strategy = LayerByLayer()
        yield
    finally:
        for block, options in before:
            block.options = options
        for block, strategy in strategies:
            block.strategy = strategy


def with_fixed_steps(options: SolveOptions, steps: int, observe: Callable[[Solution], None]) -> SolveOptions:
    """The options with a fixed number of steps, forward and backward."""
    adjoint = options.adjoint
    if isinstance(adjoint, ImplicitAdjoint):  # Its own tolerance would be checked.
        adjoint = dataclasses.replace(adjoint, stopping=None, on_failure=None)
    atol = options.stopping.atol
    if isinstance(atol, Tensor):
        raise ValueError(
            "a pass with fixed steps does not test single components: take a number as atol of rs.Stopping(...)."
        )
    stopping = FixedSteps(steps, rtol=options.stopping.rtol, atol=atol)
    return dataclasses.replace(options, stopping=stopping, adjoint=adjoint, on_failure="ignore", observe=observe)
