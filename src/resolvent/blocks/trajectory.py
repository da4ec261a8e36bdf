"""`Trajectory`: the states and solves of a pass through a block."""

from dataclasses import dataclass

from torch import Tensor
from torch.utils._pytree import tree_map

from resolvent.equation.solution import Solution
from resolvent.equation.structure import Structure, Structured


@dataclass(frozen=True)
class Trajectory:
    """The states of a pass at the grid points.

    Attributes:
        times: (num_steps + 1,), or (num_steps + 1, batch) if samples have start times or horizons of their own.
        states: (num_steps + 1, batch, *shape), the input first; in the structure of the input if that consists of
            several tensors.
        solutions: the solves in order. One per step for a theta, multistep or fully implicit scheme, one per stage for
            a diagonally implicit one, none for an explicit one. If a `ThetaBlock` solves several layers together (see
            its `mode`), one per group of layers.
    """

    times: Tensor
    states: Structured
    solutions: tuple[Solution, ...]

    @property
    def evaluations(self) -> int:
        """The number of calls of the field by the solves."""
        return sum(solution.evaluations for solution in self.solutions)

    def structured(self, structure: Structure) -> "Trajectory":
        """The trajectory of flat states, with states and solutions in their structure."""
        solutions = tuple(structure.solution(solution) for solution in self.solutions)
        return Trajectory(self.times, structure.unflatten(self.states), solutions)

    def __repr__(self) -> str:
        shape = tree_map(lambda part: tuple(part.shape), self.states)
        return f"Trajectory({shape}, {len(self.solutions)} solves, {self.evaluations} evaluations)"


def hermite(s: Tensor, h: Tensor, ends: tuple[Tensor, Tensor], slopes: tuple[Tensor, Tensor]) -> Tensor:
    """The cubic with the given values and slopes at the two ends of an interval of length h, at its fraction s."""
    (x, y), (f, g) = ends, slopes
    rise = y - x
    return x + s * rise + s * (1 - s) * ((1 - s) * (h * f - rise) - s * (h * g - rise))
