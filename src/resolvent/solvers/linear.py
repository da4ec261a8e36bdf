"""The base of the linear solvers, and the rule that picks one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.problem import Problem
from resolvent.equation.solver import Plan, Solver

DENSE_LIMIT = 32
"""Up to this many unknowns a dense Jacobian and its LU factors are cheaper than any iteration."""

LinearMap = Callable[[Tensor], Tensor]


class LinearSolver(Solver):
    """A method for A u = g or A^T u = g, A = I - tau F'(w): for Newton's correction and the backward pass."""

    def linear_plan(self, problem: Problem) -> Plan:
        return self


@dataclass(frozen=True)
class Preconditioned(LinearSolver):
    """A linear solver that takes a preconditioner.

    Arguments:
        preconditioner: a linear function M(r) ~ A^{-1} r on (batch, *shape); the solver transposes it in the backward
            pass. None takes the division by 1 - tau c if the field declares its linear part.
    """

    preconditioner: LinearMap | None = None


def as_linear(problem: Problem, solver: Solver) -> LinearProblem:
    """The problem; raises if it is not linear."""
    if not isinstance(problem, LinearProblem):
        refuse_linear(solver)
    return problem


def refuse_linear(solver: Solver) -> NoReturn:
    """Raises: a linear solver was given for w = b + tau F(w)."""
    name = type(solver).__name__
    raise ValueError(
        f"{name} solves linear systems, as in rs.ImplicitAdjoint(solver=rs.{name}()) or "
        f"rs.NewtonKrylov(linear=rs.{name}()); for w = b + tau F(w) itself take rs.Newton(), rs.Anderson(), ..."
    )
