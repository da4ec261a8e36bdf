"""A solver for equations in whose way there is a fold."""

from dataclasses import dataclass

import torch
from torch import Tensor

import resolvent as rs
from resolvent.equation.linearization import evaluate_with_matrix, factorize, solve_factorized
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import Problem
from resolvent.solvers.nonlinear import NonlinearSolver

# How far a step may go, relative to the size of the unknowns.
_CHANGE = 0.1
# Of the step in time.
_GROWTH = 3.0

PATIENT = rs.Stopping(patience=500)
"""The residual of a flow that passes a fold rises before it falls."""


@dataclass(kw_only=True)
class PseudoTransientState(rs.State):
    r: Tensor
    delta: Tensor


@dataclass(frozen=True)
class PseudoTransient(NonlinearSolver):
    """Follows the flow w' = b + tau F(w) - w to its rest, by linearly implicit steps in time:

        (I / delta + I - tau F'(w)) d = b + tau F(w) - w,      w <- w + d.

    Where I - tau F' is singular the residual may have a minimum that is not zero, and every method that lowers it is
    caught there; the flow passes. The time step delta grows as long as w changes little, until steps are Newton's.

    Reference: Kelley & Keyes, Convergence analysis of pseudo-transient continuation, SIAM J. Numer. Anal. 35 (1998).
    """

    max_steps = 500

    def plan(self, problem: Problem) -> tuple[rs.Solver, ...]:
        """Newton's method first: the flow is for the samples that it leaves."""
        return rs.Newton(), self

    def init(self, problem: Problem, w: Tensor) -> PseudoTransientState:
        image, matrix = evaluate_with_matrix(problem, w)
        r = problem.b + problem.tau * image - w
        norm = rms(r)
        return PseudoTransientState(w=w, norm=norm, matrix=matrix, r=r, delta=torch.ones_like(norm))

    def step(self, problem: Problem, state: PseudoTransientState, running: Tensor) -> PseudoTransientState:
        assert state.matrix is not None
        identity = torch.eye(state.matrix.shape[-1], dtype=state.matrix.dtype, device=state.matrix.device)
        matrix = state.matrix + identity / state.delta[:, None, None]
        factors, pivots, usable = factorize(matrix)
        d = solve_factorized(factors, pivots, state.r)
        scale = torch.maximum(rms(problem.b), rms(state.w)) + state.norm
        # A step beyond the first singularity of the matrix would go backwards.
        follows = usable & (torch.linalg.det(matrix) > 0) & (rms(d) <= _CHANGE * scale)
        w = torch.where(per_sample(running & follows, d), state.w + d, state.w)
        image, matrix = evaluate_with_matrix(problem, w)
        r = problem.b + problem.tau * image - w
        delta = torch.where(follows, state.delta * _GROWTH, state.delta / _GROWTH**2)
        return PseudoTransientState(w=w, norm=rms(r), matrix=matrix, r=r, delta=delta)
