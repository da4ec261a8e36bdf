"""Direct solution by LU factors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.core.linearization import solve_factorized
from resolvent.core.problem import Problem, flat, per_sample, rms
from resolvent.core.solver import State
from resolvent.solvers.linear import LinearSolver, as_linear


# The residual of a direct solve is some roundings of |A| |u| + |g|, its terms.
_ROUNDINGS = 8.0


@dataclass(kw_only=True)
class DenseState(State):
    r: Tensor
    count: int = 0


@dataclass(frozen=True)
class DenseLU(LinearSolver):
    """Assembles the matrix of A = I - tau F'(w), n vjps, and solves by batched LU factors.

    For few unknowns, where it is both the fastest and the most robust choice. The matrix is the one that `Newton`
    has left, if it was the forward solver, and the factors serve A and its transpose alike.

    A direct solve is as accurate as it can be when its backward error, |r| / (|A| |u| + |g|), is at rounding. Where it is
    not, a second step refines the solution; what is then still not solved, or has no correct digit because
    |A| |u| exceeds |g| by the inverse of the rounding, has a singular matrix for all that can be told.

    Reference: Higham, Accuracy and stability of numerical algorithms, SIAM 2002, chapters 7 and 12.
    """

    max_steps = 2

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
        eps = torch.finfo(w.dtype).eps
        reach, right = torch.linalg.matrix_norm(system.linearization.matrix()) * rms(w), rms(problem.b)
        hopeless = 10 * eps * reach > right
        floor = torch.where(hopeless, 0.0, _ROUNDINGS * eps * (reach + right))
        norm = torch.where(hopeless & running, torch.inf, rms(r))
        broken = torch.ones_like(hopeless) if state.count > 0 else hopeless
        return DenseState(w=w, norm=norm, broken=broken, floor=floor, r=r, count=state.count + 1)

    def _product(self, problem: Problem, w: Tensor) -> Tensor:
        system = as_linear(problem, self)
        matrix = system.linearization.matrix()
        if system.transposed:
            matrix = matrix.transpose(1, 2)
        return (matrix @ flat(w)[:, :, None]).reshape(w.shape)
