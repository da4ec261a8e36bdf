"""Newton's method with a dense Jacobian, for few unknowns."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.matrix import Dense, solve_factorized
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem, Problem
from resolvent.equation.solver import Plan, State
from resolvent.equation.torch_func import any_true
from resolvent.solvers.linear import DenseLU
from resolvent.solvers.nonlinear import NonlinearSolver

# An accepted step must achieve this fraction of the decrease that the linear model predicts.
SUFFICIENT = 1e-4
# The matrix is outdated if a chord step does not reduce the residual to this fraction.
_SLOW = 0.25


@dataclass(kw_only=True)
class NewtonState(State):
    r: Tensor
    length: Tensor | None = None  # The step lengths, (batch,); None if all are one.


@dataclass(frozen=True)
class Newton(NonlinearSolver):
    """Newton's method w <- w + s d, (I - tau F'(w)) d = b + tau F(w) - w, with dense batched LU.

    The default for few unknowns that do not contract: two to four steps, regardless of stiffness. If the residual of a
    sample would not fall, its step length s is halved and it does not move, so residuals decrease monotonically. One
    evaluation gives both F and its Jacobian, and the backward pass reuses the last Jacobian.
    """

    max_steps = 50
    monotone = True
    has_matrix = True
    unrollable = True

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU()  # Reuses the matrix.

    def init(self, problem: NonlinearProblem, w: Tensor) -> NewtonState:
        # The guess is hardly ever the solution, so the graph of its evaluation is not kept.
        image, matrix = evaluate_with_matrix(problem.without_graph(), w)
        r = problem.step_of(image) - w
        return NewtonState(w=w, norm=rms(r), matrix=matrix, r=r)

    def step(self, problem: NonlinearProblem, state: NewtonState, running: Tensor) -> NewtonState:
        assert state.matrix is not None
        direction, usable = state.matrix.solve(state.r)
        length = state.length
        sufficient: float | Tensor = 1 - SUFFICIENT
        if length is not None:
            direction, sufficient = per_sample(length, direction) * direction, 1 - SUFFICIENT * length
        trial, movable = state.w + direction, running & usable
        if not problem.agree(movable):
            trial = torch.where(per_sample(movable, trial), trial, state.w)
        image, matrix = evaluate_with_matrix(problem, trial)
        r = problem.step_of(image) - trial
        norm = rms(r)
        lower = norm < sufficient * state.norm
        if problem.agree(lower):
            return NewtonState(w=trial, norm=norm, matrix=matrix, r=r)
        move = per_sample(lower, trial)
        half = torch.full_like(norm, 0.5) if length is None else 0.5 * length
        return NewtonState(
            w=torch.where(move, trial, state.w),
            norm=torch.where(lower, norm, state.norm),
            broken=~usable,
            matrix=matrix.where(lower, state.matrix),
            r=torch.where(move, r, state.r),
            length=half.masked_fill(lower, 1.0),
        )


@dataclass(kw_only=True)
class ChordState(State):
    r: Tensor
    length: Tensor
    factors: Tensor
    pivots: Tensor
    fresh: Tensor


@dataclass(frozen=True)
class Chord(NonlinearSolver):
    """Modified Newton: keeps the LU factors, and renews them only for samples that converge slowly.

    A step with old factors costs one evaluation of F, without its Jacobian. `resolve(..., reuse=solution)` starts with
    the factors of an earlier solve. Choose it over `Newton` if the Jacobian dominates the cost: some tens of unknowns,
    or a field that changes little over the step.
    """

    max_steps = 100
    monotone = True
    learns = True

    def resume(self, problem: Problem, w: Tensor, before: ChordState) -> ChordState:
        r = problem.defect(w)
        norm = rms(r)
        return replace(before, w=w, norm=norm, r=r, length=torch.ones_like(norm), fresh=torch.zeros_like(before.fresh))

    def init(self, problem: NonlinearProblem, w: Tensor) -> ChordState:
        image, matrix = evaluate_with_matrix(problem, w)
        r = problem.step_of(image) - w
        norm = rms(r)
        factors, pivots, usable = Dense(matrix.dense()).factors
        return ChordState(
            w=w,
            norm=norm,
            broken=~usable,
            r=r,
            length=torch.ones_like(norm),
            factors=factors,
            pivots=pivots,
            fresh=torch.ones_like(usable),
        )

    def step(self, problem: NonlinearProblem, state: ChordState, running: Tensor) -> ChordState:
        assert state.broken is not None
        moved = state.w + per_sample(state.length, state.w) * solve_factorized(state.factors, state.pivots, state.r)
        trial = torch.where(per_sample(running, moved), moved, state.w)
        r = problem.defect(trial)
        norm = rms(r)
        lower = norm < (1 - SUFFICIENT * state.length) * state.norm
        slow = running & ~(norm < _SLOW * state.norm)
        # Halving helps only with the matrix of this point; an old matrix is renewed first.
        length = torch.where(~lower & state.fresh, 0.5 * state.length, 1.0)
        move = per_sample(lower, trial)
        w, r = torch.where(move, trial, state.w), torch.where(move, r, state.r)
        norm = torch.where(lower, norm, state.norm)
        fresh = state.fresh & ~lower
        renew = slow & ~fresh
        kept = replace(state, w=w, norm=norm, r=r, length=length, fresh=fresh)
        if not any_true(renew):
            return kept
        factors, pivots, usable = Dense(evaluate_with_matrix(problem, w)[1].dense()).factors
        return replace(
            kept,
            broken=torch.where(renew, ~usable, state.broken),
            factors=torch.where(renew[:, None, None], factors, state.factors),
            pivots=torch.where(renew[:, None], pivots, state.pivots),
            fresh=fresh | renew,
        )
