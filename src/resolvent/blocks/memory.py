"""Memory policies: what a pass keeps for its backward pass, and the memory of its result."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resolvent.blocks.pass_ import Pass
from resolvent.blocks.recompute import run
from resolvent.blocks.reconstruction import Reconstruction
from resolvent.equation.adjoint import UnrolledAdjoint
from resolvent.equation.failure import Mask
from resolvent.equation.norms import memory_format
from resolvent.equation.torch_func import transforming
from resolvent.schemes.scheme import Step


class Memory(ABC):
    """A policy: what a pass keeps, and what the backward pass recomputes."""

    keeps_graph: ClassVar[bool] = False
    """Whether the graph of every step is kept, so that nothing is recomputed."""

    inverts_steps: ClassVar[bool] = False
    """Whether steps are inverted, which needs a scheme with an inverse."""

    @abstractmethod
    def steps(self, pass_: Pass, x: Tensor, all_states: bool) -> Iterable[Step]:
        """The steps of a pass, differentiable under this policy. Without `all_states` the last one is enough."""

    @abstractmethod
    def check(self, pass_: Pass) -> None:
        """Raises if the policy does not support the pass."""


@dataclass(frozen=True)
class Store(Memory):
    """Keeps the graph of one evaluation of the field per solve, and nothing of the solver's iterations."""

    keeps_graph = True

    def steps(self, pass_: Pass, x: Tensor, all_states: bool) -> Iterable[Step]:
        return pass_.strategy.steps(pass_, x)

    def check(self, pass_: Pass) -> None:
        pass


class Recomputing(Memory):
    """Base of the policies that recompute every step in the backward pass. First derivatives only."""

    def check(self, pass_: Pass) -> None:
        if transforming():
            raise ValueError("torch.func cannot look into a pass that is recomputed: take memory='store'.")
        if isinstance(pass_.options.adjoint, UnrolledAdjoint):
            raise ValueError(
                "a recomputed step starts at its solution and has no iterations to unroll: take memory='store', or "
                "adjoint=rs.ImplicitAdjoint()."
            )


@dataclass(frozen=True)
class Checkpoint(Recomputing):
    """Keeps one state per step and recomputes every step in the backward pass. First derivatives only."""

    def steps(self, pass_: Pass, x: Tensor, all_states: bool) -> Iterable[Step]:
        return run(pass_, x)


@dataclass(frozen=True)
class Reversible(Recomputing):
    """Keeps only the last state and recovers the others by inverse steps in the backward pass: the inverse of a theta
    step is a (1 - theta) step with -h. First derivatives only.

    Every recovered state is checked against one number per sample and step from the forward pass. An inaccurate one
    raises a `ReconstructionError`. If all states are requested, as by `trajectory`, nothing is reconstructed.

    Arguments:
        tolerance: for the error of a recovered state, relative to its root mean square; None takes 1000 times the
            tolerance of the solves.

    Reference: Gomez et al., The reversible residual network, 2017; Reshniak & Webster, section on reversibility.
    """

    inverts_steps = True
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance!r}.")

    def check(self, pass_: Pass) -> None:
        super().check(pass_)
        if isinstance(pass_.options.on_failure, Mask):
            raise ValueError("states of masked samples cannot be recovered by inverse steps: take memory='checkpoint'.")

    def steps(self, pass_: Pass, x: Tensor, all_states: bool) -> Iterable[Step]:
        if all_states:
            return run(pass_, x)
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e3 * pass_.options.stopping.relative(x.dtype)
        return run(pass_, x, Reconstruction(tolerance))


_BY_NAME: dict[str, Memory] = {"store": Store(), "checkpoint": Checkpoint(), "reversible": Reversible()}


def as_memory(memory: str | Memory) -> Memory:
    """The policy of this name, or the user's object."""
    if isinstance(memory, Memory):
        return memory
    if not isinstance(memory, str) or memory not in _BY_NAME:
        raise ValueError(
            f"memory must be one of {tuple(_BY_NAME)} or an object such as rs.blocks.Reversible(tolerance=1e-4), "
            f"got {memory!r}."
        )
    return _BY_NAME[memory]


def own_tensor(y: Tensor, like: Tensor, shared: bool = False) -> Tensor:
    """y as a tensor of its own, in the memory format of `like`: it may be viewed, kept, and changed in place. Copied
    only if it is a view, or `shared` says that others read its memory."""
    if transforming() or type(y) is not Tensor:
        return y.clone()
    wanted = torch.contiguous_format if like.is_contiguous() else memory_format(like)
    ordered = wanted is None or y.is_contiguous(memory_format=wanted)
    if ordered and not shared and not y._is_view() and y.untyped_storage().nbytes() == y.nbytes:
        return y
    return y.clone(memory_format=wanted or torch.contiguous_format)
