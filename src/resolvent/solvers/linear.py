"""The base of the linear solvers, and the direct one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import Problem
from resolvent.equation.solver import Plan, Solver, State

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


# The residual of a direct solve is at most this many roundings of its terms, |A| |u| + |g|.
_ROUNDINGS = 8.0


@dataclass(kw_only=True)
class DenseState(State):
    r: Tensor


@dataclass(frozen=True)
class DenseLU(LinearSolver):
    """Assembles the matrix of A = I - tau F'(w), n vjps, and solves by batched LU factors.

    For few unknowns, where it is the fastest and most robust choice. If `Newton` was the forward solver, its matrix is
    reused. A and its transpose share one factorization.

    A direct solve is as accurate as possible when its backward error, |r| / (|A| |u| + |g|), is at rounding. Otherwise
    a second step refines the solution. The matrix counts as singular if that does not help either, or if rounding
    leaves an error as large as the solution.

    Reference: Higham, Accuracy and stability of numerical algorithms, SIAM 2002, chapters 7 and 12.
    """

    max_steps = 2
    at_once = True

    def init(self, problem: Problem, w: Tensor) -> DenseState:
        system = as_linear(problem, self)
        found, usable = system.linearization.matrix().solve(system.b, system.transposed)
        if not problem.agree(usable):
            found = torch.where(per_sample(usable, found), found, 0.0)
        r = system.defect_by_matrix(found)
        return DenseState(w=found, norm=rms(r), broken=~usable, r=r)

    def step(self, problem: Problem, state: DenseState, running: Tensor) -> DenseState:
        system = as_linear(problem, self)
        matrix = system.linearization.matrix()
        correction, usable = matrix.solve(state.r, system.transposed)
        w = torch.where(per_sample(running & usable, state.w), state.w + correction, state.w)
        r = system.defect_by_matrix(w)
        # After refinement the residual is the rounding of the terms, or the matrix is singular.
        floor = _ROUNDINGS * torch.finfo(w.dtype).eps * (matrix.norm() * rms(w) + rms(problem.b))
        return DenseState(w=w, norm=rms(r), broken=torch.ones_like(usable), floor=floor, r=r)
