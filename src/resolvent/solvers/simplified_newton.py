"""Simplified Newton's method, for several layers as one equation."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.linearization import evaluate_rows, evaluate_with_matrix
from resolvent.equation.matrix import Matrix
from resolvent.equation.norms import per_sample, rms, take
from resolvent.equation.problem import NonlinearProblem, Problem
from resolvent.equation.solver import Plan, State
from resolvent.solvers.linear import DenseLU
from resolvent.solvers.newton import SUFFICIENT
from resolvent.solvers.nonlinear import NonlinearSolver

# Up to this many rows a Jacobian in closed form takes hardly longer than the value, and saves one in the backward pass.
_FEW_ROWS = 2048

# A step with an old matrix must be expected to leave at most this fraction of the tolerance.
_CAUTION = 0.1


@dataclass(kw_only=True)
class HeldState(State):
    """The state of `SimplifiedNewton`. `State.matrix` is that of `w`, where it costs nothing.

    Attributes:
        r: the defect.
        held: I - tau F' at an earlier iterate.
        target: (batch,), the residual that a step with an old matrix must be expected to reach.
        renew: mask (batch,) of samples whose matrix has to be renewed before their next step; None if there are none.
        fresh: mask (batch,) of samples whose held matrix is that of `w`, or whether all are.
        length: the step lengths, (batch,); None if all are one.
    """

    r: Tensor
    held: Matrix
    target: Tensor
    renew: Tensor | None = None
    fresh: Tensor | bool = False
    length: Tensor | None = None


@dataclass(frozen=True)
class SimplifiedNewton(NonlinearSolver):
    """Newton's method that renews the matrix of a sample only if another step with the old one would not be enough.

    A step with an old matrix reduces the residual by about the same factor as the step before it. Where this reaches
    the tolerance, the old matrix serves as well as a new one. From a good guess a sample thus takes as many steps as
    with Newton's method, but one or two Jacobians. Steps are damped as in `Newton`.

    Arguments:
        rtol: the tolerance relative to the size of the first guess. Zero renews the matrix in every step.
    """

    rtol: float = 0.0

    max_steps = 50
    monotone = True

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU()

    def init(self, problem: NonlinearProblem, w: Tensor) -> HeldState:
        # The guess is hardly ever the solution, so the graph of its evaluation is not kept.
        image, matrix = evaluate_with_matrix(problem.without_graph(), w)
        r = problem.step_of(image) - w
        target = (_CAUTION * self.rtol) * rms(w)
        return HeldState(w=w, norm=rms(r), matrix=matrix, r=r, held=matrix, target=target, fresh=True)

    def step(self, problem: NonlinearProblem, state: HeldState, running: Tensor) -> HeldState:
        if problem.last is not None:
            problem.last.forget()  # Not all samples have converged, so another evaluation follows.
        state = _renewed(problem, state, running)
        direction, usable = state.held.solve(state.r)
        sufficient: float | Tensor = 1 - SUFFICIENT
        if state.length is not None:
            direction = per_sample(state.length, direction) * direction
            sufficient = 1 - SUFFICIENT * state.length
        trial, movable = state.w + direction, running & usable
        if not problem.agree(movable):
            trial = torch.where(per_sample(movable, trial), trial, state.w)
        few = _few(problem, trial)
        image, matrix = evaluate_with_matrix(problem, trial) if few else (evaluate_rows(problem, trial), None)
        r = problem.step_of(image) - trial
        norm = rms(r)
        lower = norm < sufficient * state.norm
        # The residual after another step is about norm (norm / state.norm).
        enough = norm * norm <= state.target * state.norm
        moved = HeldState(w=trial, norm=norm, matrix=matrix, r=r, held=state.held, target=state.target)
        if problem.agree(lower):
            if problem.agree(enough):
                return moved
            if matrix is not None and problem.agree(~enough):
                moved.held, moved.fresh = matrix, True
                return moved
        return _chosen(moved, state, lower, lower & enough, usable)


def _few(problem: NonlinearProblem, w: Tensor) -> bool:
    """Whether the matrix costs little beside the value."""
    few = not w.is_cpu or math.prod(w.shape[:2]) <= _FEW_ROWS
    return few and problem.function.value_and_jacobian is not None


def _chosen(moved: HeldState, state: HeldState, lower: Tensor, enough: Tensor, usable: Tensor) -> HeldState:
    """The state after the step for the samples whose residual is `lower`, and the one before it for the others.

    A sample that did not move with its own matrix takes a shorter step, one that did not move with an older matrix
    takes its own. `enough` says where the old matrix still serves.
    """
    move = per_sample(lower, moved.w)
    stuck = ~lower & state.fresh
    length = torch.ones_like(moved.norm) if state.length is None else state.length
    both = moved.matrix is not None and state.matrix is not None
    return HeldState(
        w=torch.where(move, moved.w, state.w),
        norm=torch.where(lower, moved.norm, state.norm),
        broken=~usable,
        matrix=moved.matrix.where(lower, state.matrix) if both else None,  # type: ignore[union-attr, arg-type]
        r=torch.where(move, moved.r, state.r),
        held=state.held,
        target=state.target,
        renew=~(enough | stuck),
        fresh=stuck,
        length=torch.where(stuck, 0.5 * length, length.masked_fill(lower, 1.0)),
    )


def _renewed(problem: NonlinearProblem, state: HeldState, running: Tensor) -> HeldState:
    """The state with new matrices for the samples that need one and are still running."""
    if state.renew is None:
        return state
    wanted = state.renew & running
    fresh = wanted | state.fresh
    if state.matrix is not None:
        return replace(state, held=state.matrix.where(wanted, state.held), renew=None, fresh=fresh)
    rows = wanted.nonzero().squeeze(1)
    if len(rows) == 0:
        return state
    at = problem.without_graph()
    if len(rows) == len(wanted) or not problem.rowwise:
        held = evaluate_with_matrix(at, state.w)[1].where(wanted, state.held)
    else:
        held = state.held.put(rows, evaluate_with_matrix(at.take(rows), take(state.w, rows))[1])
    return replace(state, held=held, renew=None, fresh=fresh)
