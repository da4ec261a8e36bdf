"""`FrozenRandomness`: random numbers that are drawn once a pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from resolvent.equation.function import as_vector_field
from resolvent.equation.linear_part import LinearPart
from resolvent.equation.torch_func import transforming


class FrozenRandomness(nn.Module):
    """A module whose random numbers are the same in all evaluations of a pass: dropout, stochastic depth, noise.

    An implicit layer evaluates its field many times, in the solve and in the backward pass, and it must be one function
    throughout. Each pass of a block, an equilibrium or `rs.odeint` draws one seed from torch's generator, and each of
    its evaluations starts from that seed. The next pass draws another. Outside a pass the module draws as usual.

        rs.Equilibrium(rs.blocks.FrozenRandomness(f))
        rs.ThetaBlock(rs.blocks.FrozenRandomness(field))

    It covers what is drawn from torch's default generators of the CPU and of the devices of the arguments. These are
    shared by all threads: passes with frozen randomness must not run in several threads at once. The numbers of a
    sample depend on its place in the batch, so the module is always called with the whole batch. Batch norm in training
    mode is no randomness, and stays refused.

    Arguments:
        module: a field F(t, y), a function of an equilibrium f(z, *inputs), or any part of them. It must be registered
            as a submodule of the layer.

    Reference: Gal & Ghahramani, A theoretically grounded application of dropout in recurrent neural networks, 2016 (one
    mask for all steps); Huang et al., Deep networks with stochastic depth, 2016.
    """

    rowwise = False
    value_and_jacobian = None
    _seed: int | None = None

    def __init__(self, module: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(module):
            raise ValueError(f"module must be a module or a function, got {module!r}.")
        self.module = module

    @property
    def autonomous(self) -> bool:
        return as_vector_field(self.module).autonomous

    @property
    def linear_part(self) -> float | Tensor | LinearPart | None:
        return as_vector_field(self.module).linear_part

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self._seed is None:
            return self.module(*arguments, **named)
        leaves = tree_leaves((arguments, named))
        devices = {leaf.get_device() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
        with torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(self._seed)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(self._seed)
            return self.module(*arguments, **named)


def draw_seed() -> int:
    """A seed from torch's default generator."""
    try:
        return int(torch.randint(2**62, ()))
    except RuntimeError as error:
        if transforming():
            raise ValueError(
                'frozen randomness is drawn once for all copies of a vmapped function: take randomness="same" in vmap.'
            ) from error
        raise
