"""Pseudo-transient continuation, for when I - tau F' becomes singular on the way to the root."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.matrix import Dense
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solver import State
from resolvent.solvers.nonlinear import NonlinearSolver

# How far a step may go, relative to the size of the unknowns.
_CHANGE = 0.1
# Of the step in time.
_GROWTH = 3.0


@dataclass(kw_only=True)
class PseudoTransientState(State):
    r: Tensor
    delta: Tensor


@dataclass(frozen=True)
class PseudoTransient(NonlinearSolver):
    """Follows the flow w' = b + tau F(w) - w to its rest, by linearly implicit steps in time:

        (I / delta + I - tau F'(w)) d = b + tau F(w) - w,      w <- w + d.

    Where I - tau F' is singular the residual may have a minimum that is not zero, and every method that lowers it is
    caught there; the flow passes. The time step delta grows as long as w changes little, until steps are Newton's. The
    residual may rise before it falls, so give it patience: `rs.Stopping(patience=500)`. Dense: for few unknowns.

    Reference: Kelley & Keyes, Convergence analysis of pseudo-transient continuation, SIAM J. Numer. Anal. 35 (1998).
    """

    max_steps = 500

    def init(self, problem: NonlinearProblem, w: Tensor) -> PseudoTransientState:
        image, matrix = evaluate_with_matrix(problem, w)
        r = problem.step_of(image) - w
        norm = rms(r)
        return PseudoTransientState(w=w, norm=norm, matrix=matrix, r=r, delta=torch.ones_like(norm))

    def step(self, problem: NonlinearProblem, state: PseudoTransientState, running: Tensor) -> PseudoTransientState:
        assert state.matrix is not None
        entries = state.matrix.dense()
        identity = torch.eye(entries.shape[-1], dtype=entries.dtype, device=entries.device)
        shifted = Dense(entries + identity / state.delta[:, None, None])
        d, usable = shifted.solve(state.r)
        scale = torch.maximum(rms(problem.b), rms(state.w)) + state.norm
        # A step beyond the first singularity of the matrix would go backwards.
        follows = usable & (torch.linalg.det(shifted.entries) > 0) & (rms(d) <= _CHANGE * scale)
        w = torch.where(per_sample(running & follows, d), state.w + d, state.w)
        image, matrix = evaluate_with_matrix(problem, w)
        r = problem.step_of(image) - w
        delta = torch.where(follows, state.delta * _GROWTH, state.delta / _GROWTH**2)
        return PseudoTransientState(w=w, norm=rms(r), matrix=matrix, r=r, delta=delta)
