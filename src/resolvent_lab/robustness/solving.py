"""Prepares a model for an attack: frozen, and with accurate gradients."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

import resolvent as rs


@contextmanager
def fixed(model: nn.Module) -> Iterator[nn.Module]:
    """The model in evaluation mode, with parameters that need no gradients. It is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in learned:
            parameter.requires_grad_(False)
        yield model
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
        for module, mode in modes:
            module.training = mode


@contextmanager
def attackable(model: nn.Module, rtol: float = 1e-5) -> Iterator[nn.Module]:
    """The model with accurate solves and gradients, and `fixed`. It is restored afterwards.

    Loose tolerances and approximate adjoints are enough for training. An attack with such gradients can fail because
    they are inaccurate, and the model then looks more robust than it is. In this context blocks solve to the tolerance
    `rtol`, or to their own if it is smaller, with the implicit adjoint. Their `on_failure` does not change. The model
    that is yielded computes normalised weights once for all passes.
    """
    with ExitStack() as stack:
        for block in model.modules():
            if isinstance(block, rs.Block):
                own = block.options.stopping.rtol
                stopping = rs.Stopping(rtol=None if own is None else min(own, rtol))
                adjoint = _accurate(block.options.adjoint)
                stack.enter_context(rs.blocks.solved_with(block, stopping=stopping, adjoint=adjoint))
        stack.enter_context(fixed(model))
        yield stack.enter_context(rs.blocks.frozen_weights(model))


def _accurate(adjoint: object) -> rs.ImplicitAdjoint:
    """The implicit adjoint, to the tolerance of the forward solve."""
    own = adjoint if isinstance(adjoint, rs.ImplicitAdjoint) else rs.ImplicitAdjoint()
    return dataclasses.replace(own, stopping=None)
