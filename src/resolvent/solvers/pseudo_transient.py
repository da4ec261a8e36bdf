"""Pseudo-transient continuation, for when I - tau F' becomes singular on the way to the root."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization, evaluate_with_matrix
from resolvent.equation.matrix import Dense
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solver import State
from resolvent.solvers.nonlinear import InexactSolver

# The largest step, relative to the size of the unknowns.
_CHANGE = 0.1
# The growth factor of the time step; a rejected one shrinks by its square.
_GROWTH = 3.0
# Up to this many unknowns the matrix is formed: its determinant shows on which side of a singularity a sample is.
MOST_DENSE = 128
# The tolerance of the corrections for many unknowns, relative to their right-hand side.
_ACCURACY = 1e-2


@dataclass(kw_only=True)
class PseudoTransientState(State):
    r: Tensor
    delta: Tensor


@dataclass(frozen=True)
class PseudoTransient(InexactSolver):
    """Follows the flow w' = b + tau F(w) - w to its equilibrium, by linearly implicit steps in time:

        (I / delta + I - tau F'(w)) d = b + tau F(w) - w,      w <- w + d.

    Where I - tau F' is singular the residual may have a nonzero minimum, which traps every method that decreases it;
    the flow passes it. The time step delta grows as long as w changes little, until the steps are Newton's. For up to
    128 unknowns the matrix of every sample is formed; beyond, the systems are solved by products with F'.

    Arguments:
        linear: the solver for the corrections of many unknowns.
        inner_steps: its most steps per correction.

    Reference: Kelley & Keyes, Convergence analysis of pseudo-transient continuation, SIAM J. Numer. Anal. 35 (1998).
    """

    max_steps = 300
    patience = 300  # The residual rises before it falls when the flow passes a fold.

    def init(self, problem: NonlinearProblem, w: Tensor) -> PseudoTransientState:
        return self._at(problem, w, torch.ones_like(rms(w)))

    def step(self, problem: NonlinearProblem, state: PseudoTransientState, running: Tensor) -> PseudoTransientState:
        correct = self._by_products if state.matrix is None else self._by_matrix
        d, usable = correct(problem, state, running)
        scale = torch.maximum(rms(problem.b), rms(state.w)) + state.norm
        follows = usable & (rms(d) <= _CHANGE * scale)
        w = torch.where(per_sample(running & follows, d), state.w + d, state.w)
        return self._at(problem, w, torch.where(follows, state.delta * _GROWTH, state.delta / _GROWTH**2))

    def _at(self, problem: NonlinearProblem, w: Tensor, delta: Tensor) -> PseudoTransientState:
        if problem.size > MOST_DENSE:
            r, matrix = problem.defect(w), None
        else:
            image, matrix = evaluate_with_matrix(problem, w)
            r = problem.step_of(image) - w
        return PseudoTransientState(w=w, norm=rms(r), matrix=matrix, r=r, delta=delta)

    def _by_matrix(
        self, problem: NonlinearProblem, state: PseudoTransientState, running: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The corrections, and (batch,) whether they point along the flow."""
        assert state.matrix is not None
        entries = state.matrix.dense()
        identity = torch.eye(entries.shape[-1], dtype=entries.dtype, device=entries.device)
        shifted = Dense(entries + identity / state.delta[:, None, None])
        d, usable = shifted.solve(state.r)
        # A step beyond the first singularity of the matrix would go against the flow.
        return d, usable & (torch.linalg.det(shifted.entries) > 0)

    def _by_products(
        self, problem: NonlinearProblem, state: PseudoTransientState, running: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same by products: I / delta + I - tau F' is (1 + 1 / delta) times the matrix of a smaller tau."""
        part = 1 / (1 + 1 / state.delta)
        smaller = replace(problem, tau=problem.tau * per_sample(part, state.w))
        system = LinearProblem(per_sample(part, state.r) * state.r, Linearization(smaller, state.w), transposed=False)
        found = self.correction(system, running, torch.full_like(part, _ACCURACY))
        return found, found.flatten(1).isfinite().all(1)
