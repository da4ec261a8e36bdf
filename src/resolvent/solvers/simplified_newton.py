"""Simplified Newton's method, for several layers as one equation."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.matrix import Matrix
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem, Problem
from resolvent.equation.solver import Plan, State
from resolvent.solvers.linear import DenseLU
from resolvent.solvers.newton import SUFFICIENT
from resolvent.solvers.nonlinear import NonlinearSolver

# The matrix of a sample is renewed if a step does not reduce its residual to this fraction.
_SLOW = 0.1


@dataclass(kw_only=True)
class HeldState(State):
    """The state of `SimplifiedNewton`. `State.matrix` stays empty: the held matrix is not that of the solution.

    Attributes:
        r: the defect.
        held: I - tau F' at an earlier iterate.
        renew: mask (batch,) of samples whose matrix has to be renewed before their next step; None if there are none.
        fresh: mask (batch,) of samples whose matrix is that of `w`.
        length: the step lengths, (batch,); None if all are one.
    """

    r: Tensor
    held: Matrix
    renew: Tensor | None = None
    fresh: Tensor
    length: Tensor | None = None


@dataclass(frozen=True)
class SimplifiedNewton(NonlinearSolver):
    """Newton's method that keeps the matrix of the first guess as long as every step reduces the residual to a tenth.

    From a good guess it takes as many steps as Newton's method, or one more, but evaluates a Jacobian once and not in
    each step. The matrices of slow samples are renewed, those of the others are not. Steps are damped as in `Newton`.
    """

    max_steps = 50
    monotone = True

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU()

    def init(self, problem: NonlinearProblem, w: Tensor) -> HeldState:
        # The guess is hardly ever the solution, so the graph of its evaluation is not kept.
        image, matrix = evaluate_with_matrix(problem.without_graph(), w)
        r = problem.step_of(image) - w
        norm = rms(r)
        return HeldState(w=w, norm=norm, r=r, held=matrix, fresh=torch.ones_like(norm, dtype=torch.bool))

    def step(self, problem: NonlinearProblem, state: HeldState, running: Tensor) -> HeldState:
        state = _renewed(problem, state, running)
        direction, usable = state.held.solve(state.r)
        length = state.length
        sufficient: float | Tensor = 1 - SUFFICIENT
        if length is not None:
            direction, sufficient = per_sample(length, direction) * direction, 1 - SUFFICIENT * length
        trial, movable = state.w + direction, running & usable
        if not problem.agree(movable):
            trial = torch.where(per_sample(movable, trial), trial, state.w)
        r = problem.step_of(problem.evaluate(trial)) - trial
        norm = rms(r)
        quick = norm < _SLOW * state.norm
        if problem.agree(quick):
            return HeldState(w=trial, norm=norm, r=r, held=state.held, fresh=torch.zeros_like(quick))
        lower = norm < sufficient * state.norm
        move = per_sample(lower, trial)
        fresh = state.fresh & ~lower
        # A sample that did not move with its own matrix takes a shorter step; with an older one, a new matrix.
        one = torch.ones_like(norm) if length is None else length
        return HeldState(
            w=torch.where(move, trial, state.w),
            norm=torch.where(lower, norm, state.norm),
            broken=~usable & state.fresh,
            r=torch.where(move, r, state.r),
            held=state.held,
            renew=~(quick | fresh),
            fresh=fresh,
            length=torch.where(fresh, 0.5 * one, one.masked_fill(lower, 1.0)),
        )


def _renewed(problem: NonlinearProblem, state: HeldState, running: Tensor) -> HeldState:
    """The state with the matrices of the samples renewed that need it and are still running."""
    if state.renew is None:
        return state
    wanted = state.renew & running
    rows = wanted.nonzero().squeeze(1)
    if len(rows) == 0:
        return state
    at = problem.without_graph()
    if len(rows) == len(wanted):
        held = evaluate_with_matrix(at, state.w)[1]
    else:
        held = state.held.put(rows, evaluate_with_matrix(at.take(rows), state.w[rows])[1])
    return replace(state, held=held, renew=None, fresh=state.fresh | wanted)
