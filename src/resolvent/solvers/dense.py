"""Direct solution by LU factors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.core.linearization import solve_factorized
from resolvent.core.problem import Problem, flat, per_sample, rms
from resolvent.core.solver import State
from resolvent.solvers.linear import LinearSolver, as_linear


@dataclass(kw_only=True)
class DenseState(State):
    r: Tensor


@dataclass(frozen=True)
class DenseLU(LinearSolver):
    """Assembles the matrix of A = I - tau F'(w), n vjps, and solves by batched LU factors.

    For few unknowns, where it is both the fastest and the most robust choice. The matrix is the one that `Newton`
    has left, if it was the forward solver, and the factors serve A and its transpose alike. A second step is one of
    iterative refinement, taken only if rounding has left the residual above the tolerance.
    """

    max_steps = 3

    def init(self, problem: Problem, w: Tensor) -> DenseState:
        linearization = as_linear(problem, self).linearization
        usable = linearization.factors()[2]
        r = problem.b - self._product(problem, w)
        return DenseState(w=w, norm=rms(r), broken=~usable, r=r)

    def step(self, problem: Problem, state: DenseState, running: Tensor) -> DenseState:
        system = as_linear(problem, self)
        factors, pivots, _ = system.linearization.factors()
        moved = state.w + solve_factorized(factors, pivots, state.r, system.transposed)
        w = torch.where(per_sample(running, moved), moved, state.w)
        r = problem.b - self._product(problem, w)
        return DenseState(w=w, norm=rms(r), broken=state.broken, r=r)

    def _product(self, problem: Problem, w: Tensor) -> Tensor:
        system = as_linear(problem, self)
        matrix = system.linearization.matrix()
        if system.transposed:
            matrix = matrix.transpose(1, 2)
        return (matrix @ flat(w)[:, :, None]).reshape(w.shape)
