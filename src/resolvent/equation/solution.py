"""`Solution`, the result of a solve, and `Status`, how each sample ended."""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from resolvent.equation.matrix import Matrix
    from resolvent.equation.solver import Solver, State


class Status(IntEnum):
    """How the solve of one sample ended."""

    RUNNING = 0
    CONVERGED = 1
    MAX_STEPS = 2
    STALLED = 3
    DIVERGED = 4
    NON_FINITE = 5
    BREAKDOWN = 6

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    Status.RUNNING: "not finished",
    Status.CONVERGED: "reached its tolerance",
    Status.MAX_STEPS: "ran out of steps",
    Status.STALLED: "stopped making progress",
    Status.DIVERGED: "diverged",
    Status.NON_FINITE: "met a value that is not finite",
    Status.BREAKDOWN: "met a singular system",
}


@dataclass
class Work:
    """Counts calls of F and products with its derivative. A call of a whole batch counts once."""

    evaluations: int = 0
    vjps: int = 0
    jvps: int = 0

    def plus(self, other: "Work") -> "Work":
        return Work(self.evaluations + other.evaluations, self.vjps + other.vjps, self.jvps + other.jvps)


@dataclass(frozen=True)
class Solution:
    """The result of a solve, per sample.

    Attributes:
        value: (batch, *shape), or several such tensors in the structure of b: the solution; for a failed sample, the
            iterate with its smallest residual.
        status: (batch,), `Status` codes.
        residual: (batch,), root mean square of w - b - tau F(w).
        steps: (batch,), steps of each sample.
        solver_index: (batch,), index into `solvers` of the last solver that ran on the sample.
        solvers: the solvers that were tried, in order; more than one only if a fallback was needed.
        evaluations, vjps, jvps: calls of F, and products with its transposed and its plain Jacobian.
        all_converged: whether all samples converged; reading it does not wait for the device.
        matrix: I - tau F'(value), if the solver computed it.
        state: what the solver has learned, for `resolve(..., reuse=solution)`; None where it learns nothing.
        linear: whether the equation was linear, as that of a backward pass is.
        quick: whether the first of the solvers was the quick attempt of `rs.Auto`, which hands samples on as planned.
        rounds: how many steps the batch took in the first attempt, if it is known: the backward pass takes as many.
    """

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor
    solver_index: Tensor
    solvers: "tuple[Solver, ...]"
    work: Work = field(repr=False)
    all_converged: bool = False
    matrix: "Matrix | None" = field(default=None, repr=False)
    state: "State | None" = field(default=None, repr=False)
    linear: bool = False
    quick: bool = False
    rounds: int | None = field(default=None, repr=False)

    @property
    def converged(self) -> Tensor:
        return self.status == Status.CONVERGED

    @property
    def evaluations(self) -> int:
        return self.work.evaluations

    @property
    def vjps(self) -> int:
        return self.work.vjps

    @property
    def jvps(self) -> int:
        return self.work.jvps

    def take(self, rows: Tensor) -> "Solution":
        """The solution of the samples `rows` alone. The counts stay those of the whole batch."""
        parts = {name: getattr(self, name)[rows] for name in ("value", "status", "residual", "steps", "solver_index")}
        matrix = None if self.matrix is None else self.matrix.take(rows)
        all_converged = bool((parts["status"] == Status.CONVERGED).all())
        return replace(self, **parts, matrix=matrix, state=None, all_converged=all_converged)

    def __repr__(self) -> str:
        names = " then ".join(type(solver).__name__ for solver in self.solvers)
        shape = tree_map(lambda part: tuple(part.shape), self.value)
        if isinstance(self.status, torch.Tensor) and torch._C._are_functorch_transforms_active():
            return f"Solution({shape} by {names})"
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        return (
            f"Solution({shape} by {names}: {int(self.converged.sum())} of {self.status.numel()} converged, "
            f"at most {int(self.steps.max()) if self.steps.numel() else 0} steps, worst residual {worst:.1e}, "
            f"{self.evaluations} evaluations, {self.vjps} vjps, {self.jvps} jvps)"
        )


def joined(group: Solution, good: Tensor, value: Tensor | None, bad: Tensor, own: Solution, first: bool) -> Solution:
    """The solution of one layer whose samples `good` were solved in a `group` of layers, with the given value, and
    whose samples `bad` were solved on their `own`. The steps of the group count in its first layer."""
    order = torch.cat([good, bad]).argsort()

    def merge(quick: Tensor, slow: Tensor) -> Tensor:
        return torch.cat([quick, slow])[order]

    zeros = torch.zeros_like(group.steps[good])
    steps = (group.steps[good], own.steps + group.steps[bad]) if first else (zeros, own.steps)
    return Solution(
        value=own.value[order] if value is None else merge(value, own.value),
        status=merge(group.status[good], own.status),
        residual=merge(group.residual[good], own.residual),
        steps=merge(*steps),
        solver_index=merge(group.solver_index[good], own.solver_index + len(group.solvers)),
        solvers=(*group.solvers, *own.solvers),
        work=own.work.plus(group.work) if first else own.work,
        all_converged=own.all_converged,
    )
