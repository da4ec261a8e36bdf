"""A model as an attack needs it: fixed, and with gradients that are what they claim to be."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn

from resolvent.blocks import Block
from resolvent.blocks.weights import frozen_weights
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.options import SolveOptions
from resolvent.equation.stopping import Stopping


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
def solved_otherwise(model: nn.Module, change: Callable[[SolveOptions], SolveOptions]) -> Iterator[None]:
    """The blocks of the model solve their equations in another way; afterwards they are as before."""
    blocks = [(module, module.options) for module in model.modules() if isinstance(module, Block)]
    try:
        for block, options in blocks:
            block.options = change(options)
        yield
    finally:
        for block, options in blocks:
            block.options = options


@contextmanager
def attackable(model: nn.Module, rtol: float = 1e-5) -> Iterator[nn.Module]:
    """The model with its equations solved and differentiated accurately, and `fixed`; afterwards it is as before.

    Training gets by with loosely solved equations and approximate adjoints. An attack that follows such gradients can
    fail for their sake, and the model looks robust that is not. Inside, blocks solve to the tolerance `rtol` or to a
    smaller one of their own, with the implicit adjoint. What they do `on_failure` is left to them. In the model that
    is yielded normalised weights are computed once for all passes.
    """
    with solved_otherwise(model, partial(_accurate, rtol=rtol)), fixed(model), frozen_weights(model) as frozen:
        yield frozen


def _accurate(options: SolveOptions, rtol: float) -> SolveOptions:
    own = options.stopping.rtol
    adjoint = options.adjoint if isinstance(options.adjoint, ImplicitAdjoint) else ImplicitAdjoint()
    return dataclasses.replace(
        options,
        stopping=Stopping(rtol=None if own is None else min(own, rtol)),
        adjoint=dataclasses.replace(adjoint, stopping=None),
    )
