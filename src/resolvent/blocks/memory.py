"""Memory policies: what a pass keeps for its backward pass."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from resolvent.blocks.pass_ import Pass
from resolvent.blocks.recompute import run
from resolvent.blocks.reconstruction import Reconstruction
from resolvent.equation.adjoint import UnrolledAdjoint
from resolvent.equation.solution import Solution
from resolvent.equation.torch_func import transforming

States = tuple[list[Tensor], list[Solution]]


class Memory(ABC):
    """A policy: what is kept, and what is computed anew."""

    @abstractmethod
    def last(self, pass_: Pass, x: Tensor) -> Tensor:
        """The state after the last step."""

    @abstractmethod
    def all(self, pass_: Pass, x: Tensor) -> States:
        """The state after each step, and the solves."""

    @abstractmethod
    def check(self, pass_: Pass) -> None:
        """Raises if the policy cannot serve the pass."""


@dataclass(frozen=True)
class Store(Memory):
    """Keeps the graph of one evaluation of the field for each solve, and nothing of the solver's iterations."""

    def last(self, pass_: Pass, x: Tensor) -> Tensor:
        for step in pass_.steps(x):
            state = step.state
        return state

    def all(self, pass_: Pass, x: Tensor) -> States:
        steps = list(pass_.steps(x))
        return [step.state for step in steps], [solution for step in steps for solution in step.solutions]

    def check(self, pass_: Pass) -> None:
        pass


class Recomputing(Memory):
    """The policies that make every step again in the backward pass: first derivatives only."""

    def all(self, pass_: Pass, x: Tensor) -> States:
        solutions: list[Solution] = []
        return list(run(pass_, x, solutions=solutions)), solutions

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
    """Keeps one state per step and makes every step again in the backward pass: first derivatives only."""

    def last(self, pass_: Pass, x: Tensor) -> Tensor:
        return run(pass_, x)[-1]


@dataclass(frozen=True)
class Reversible(Recomputing):
    """Keeps only the last state and recovers the others by inverse steps in the backward pass: the inverse of a theta
    step is a (1 - theta) step with -h. First derivatives only.

    Every recovered state is checked, and a `ReconstructionError` raised where the dynamics made it inaccurate. The pass
    keeps one number for each sample and step to check them by. When all states are asked for, they exist anyway, and
    nothing is reconstructed.

    Arguments:
        tolerance: for the error of a recovered state, relative to its root mean square; None takes a thousand times the
            tolerance of the solves.

    Reference: Gomez et al., The reversible residual network, 2017; Reshniak & Webster, section on reversibility.
    """

    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance!r}.")

    def last(self, pass_: Pass, x: Tensor) -> Tensor:
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e3 * pass_.options.stopping.relative(x.dtype)
        return run(pass_, x, Reconstruction(tolerance))[-1]


_BY_NAME: dict[str, Memory] = {"store": Store(), "checkpoint": Checkpoint(), "reversible": Reversible()}


def as_memory(memory: str | Memory) -> Memory:
    """A policy by its name, or the user's own."""
    if isinstance(memory, Memory):
        return memory
    if not isinstance(memory, str) or memory not in _BY_NAME:
        raise ValueError(
            f"memory must be one of {tuple(_BY_NAME)} or an object such as rs.blocks.Reversible(tolerance=1e-4), "
            f"got {memory!r}."
        )
    return _BY_NAME[memory]
