"""A model as an attack needs it: fixed, and with gradients that are what they claim to be."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

import resolvent as rs


@contextmanager
def fixed(model: nn.Module) -> Iterator[nn.Module]:
    """The model in evaluation mode and with parameters that collect no gradients; afterwards it is as before."""
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
    """The model with its equations solved and differentiated accurately, and `fixed`; afterwards it is as before.

    Training gets by with loosely solved equations and approximate adjoints. An attack that follows such gradients can
    fail for their sake, and the model looks robust that is not. Inside, blocks solve to the tolerance `rtol` or to a
    smaller one of their own, with the implicit adjoint. What they do `on_failure` is left to them. In the model that
    is yielded normalised weights are computed once for all passes.
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
