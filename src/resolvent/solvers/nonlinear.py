"""The bases of the nonlinear solvers."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.loop import iterate
from resolvent.equation.problem import Problem
from resolvent.equation.solver import Attempt, Plan, Solver
from resolvent.equation.stopping import Stopping
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.linear import DENSE_LIMIT, DenseLU


class NonlinearSolver(Solver):
    """A method for w = b + tau F(w)."""

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU() if problem.size <= DENSE_LIMIT else GMRES()


@dataclass(frozen=True)
class InexactSolver(NonlinearSolver):
    """A method whose corrections are the rough solutions of linear systems.

    Arguments:
        linear: the solver for the corrections.
        inner_steps: its most steps per correction.
    """

    linear: Solver = field(default_factory=GMRES)
    inner_steps: int = 60

    def __post_init__(self) -> None:
        if not isinstance(self.linear, Solver):
            raise ValueError(f"linear must be a linear solver such as rs.GMRES(), got {self.linear!r}.")
        if not isinstance(self.inner_steps, int) or self.inner_steps < 1:
            raise ValueError(f"inner_steps must be 1 or more, got {self.inner_steps!r}.")

    def correction(self, system: LinearProblem, needed: Tensor, rtol: Tensor) -> Tensor:
        """The solution of a linear system to the tolerance rtol (batch,), for the samples where `needed` (batch,)."""
        inner = Stopping(max_steps=self.inner_steps)
        found, _ = iterate(system, Attempt(self.linear), inner, torch.zeros_like(system.b), needed, rtol=rtol)
        return found.value
