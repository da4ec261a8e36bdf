"""`solved_with`: a context that changes the solve options of a model."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from resolvent.blocks.block import Block
from resolvent.blocks.equilibrium import Equilibrium
from resolvent.equation.adjoint import Adjoint
from resolvent.equation.failure import Policy
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule
from resolvent.solvers.resolve import solve_options


@contextmanager
def solved_with(
    model: nn.Module,
    *,
    solver: Plan | None = None,
    stopping: StoppingRule | None = None,
    adjoint: Adjoint | None = None,
    on_failure: Policy | None = None,
) -> Iterator[None]:
    """Changes how the blocks and equilibria of a model solve their equations, and restores their options on exit.

        with rs.blocks.solved_with(model, stopping=rs.Stopping(rtol=1e-8)):
            accurate = model(x)

    The blocks themselves are changed, so other threads see it too. `block.options` holds the current options.

    Arguments:
        model: a block or an equilibrium, or a module that contains some.
        solver, stopping, adjoint, on_failure: see `Block`; None keeps the option of each block.
    """
    before = [(block, block.options) for block in model.modules() if isinstance(block, Block | Equilibrium)]
    try:
        for block, own in before:
            changed = solve_options(
                own.solver if solver is None else solver,
                own.stopping if stopping is None else stopping,
                own.adjoint if adjoint is None else adjoint,
                own.on_failure if on_failure is None else on_failure,
            )
            block.options = dataclasses.replace(changed, observe=own.observe)
        yield
    finally:
        for block, own in before:
            block.options = own
