"""What a solve gives back."""

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from resolvent.core.solver import Solver, State


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
    """How often F was called, and its derivative applied. A call counts once, however many samples it has."""

    evaluations: int = 0
    vjps: int = 0
    jvps: int = 0


@dataclass(frozen=True)
class Solution:
    """The outcome of a solve, sample by sample.

    Attributes:
        value: (batch, *shape), the solution; where a sample failed, the iterate with its smallest residual.
        status: (batch,) of `Status` codes.
        residual: (batch,), root mean square of w - b - tau F(w).
        steps: (batch,), steps this sample took.
        stage: (batch,), index into `solvers` of the one that had the sample last.
        solvers: the solvers that were tried, in order; more than one only where a fallback was needed.
        evaluations, vjps, jvps: calls of F, and of products with its transposed and its plain Jacobian.
        settled: whether all samples converged; known without another look at the device.
        matrix: (batch, n, n), the dense I - tau F'(value), where the solver had it at hand.
        state: what the solver has learned, for `resolve(..., reuse=solution)`; None where it learns nothing.
    """

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor
    stage: Tensor
    solvers: "tuple[Solver, ...]"
    work: Work = field(repr=False)
    settled: bool = False
    matrix: Tensor | None = field(default=None, repr=False)
    state: "State | None" = field(default=None, repr=False)

    def after(self, first: "Solution") -> "Solution":
        """This one, with what an earlier solve for the same had cost added to it."""
        costs = (getattr(self.work, f.name) + getattr(first.work, f.name) for f in fields(Work))
        return replace(self, steps=self.steps + first.steps, work=Work(*costs))

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

    def __repr__(self) -> str:
        names = " then ".join(type(solver).__name__ for solver in self.solvers)
        shape = tuple(self.value.shape)
        if isinstance(self.status, torch.Tensor) and torch._C._are_functorch_transforms_active():
            return f"Solution({shape} by {names})"
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        return (
            f"Solution({shape} by {names}: {int(self.converged.sum())} of {self.status.numel()} converged, "
            f"at most {int(self.steps.max()) if self.steps.numel() else 0} steps, worst residual {worst:.1e}, "
            f"{self.evaluations} evaluations, {self.vjps} vjps, {self.jvps} jvps)"
        )
