"""Simplified Newton's method, for several layers as one equation."""

import math
from dataclasses import dataclass
from typing import Any

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

# Up to this many rows a Jacobian in closed form takes hardly longer than the value. With a graph up to more of them, as
# it saves one in the backward pass.
_FEW_ROWS, _FEW_ROWS_WITH_GRAPH = 1024, 4096

# A first step may solve a sample if the square of its residual exceeds the tolerance by at most this factor.
_HOPE = 100.0
# A step with an old matrix must be expected to leave at most this fraction of the tolerance.
_CAUTION = 0.1


@dataclass(kw_only=True)
class HeldState(State):
    """The state of `SimplifiedNewton`. `State.matrix` is that of `w`, where it costs nothing.

    Attributes:
        r: the defect.
        held: I - tau F' at an earlier iterate.
        target: (batch,), the residual that a step with an old matrix must be expected to reach.
        fresh: mask (batch,) of samples whose held matrix was that of the iterate before the last step, or whether all.
        length: the step lengths, (batch,); None if all are one.
        previous: `norm` before the last step; None before the first.
        lower: mask (batch,) of samples that the last step moved; None if all.
    """

    r: Tensor
    held: Matrix
    target: Tensor
    fresh: Tensor | bool = True
    length: Tensor | None = None
    previous: Tensor | None = None
    lower: Tensor | None = None


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
        return HeldState(w=w, norm=rms(r), matrix=matrix, r=r, held=matrix, target=target)

    def step(self, problem: NonlinearProblem, state: HeldState, running: Tensor) -> HeldState:
        if problem.last is not None:
            problem.last.forget()  # Not all samples have converged, so another evaluation follows.
        _prepare(problem, state, running)
        direction, usable = state.held.solve(state.r)
        sufficient: float | Tensor = 1 - SUFFICIENT
        if state.length is not None:
            direction = per_sample(state.length, direction) * direction
            sufficient = 1 - SUFFICIENT * state.length
        trial, movable = state.w + direction, running & usable
        if not problem.agree(movable):
            trial = torch.where(per_sample(movable, trial), trial, state.w)
        few, at = _few(problem, trial), problem if self._may_be_last(problem, state) else problem.without_graph()
        image, matrix = evaluate_with_matrix(at, trial) if few else (evaluate_rows(at, trial), None)
        r = problem.step_of(image) - trial
        norm = rms(r)
        lower = norm < sufficient * state.norm
        kept: dict[str, Any] = {
            "held": state.held,
            "target": state.target,
            "fresh": state.fresh,
            "length": state.length,
        }
        if problem.agree(lower):
            return HeldState(w=trial, norm=norm, matrix=matrix, r=r, previous=state.norm, **kept)
        move = per_sample(lower, trial)
        both = matrix is not None and state.matrix is not None
        return HeldState(
            w=torch.where(move, trial, state.w),
            norm=torch.where(lower, norm, state.norm),
            broken=~usable,
            matrix=matrix.where(lower, state.matrix) if both else None,  # type: ignore[union-attr, arg-type]
            r=torch.where(move, r, state.r),
            previous=state.norm,
            lower=lower,
            **kept,
        )

    def _may_be_last(self, problem: NonlinearProblem, state: HeldState) -> bool:
        """Whether the next step may solve all samples, so that its graph is worth recording. Residuals relative to the
        size of the solution are about squared in a step."""
        if self.rtol == 0 or problem.last is None or state.previous is not None:
            return True
        size = state.target / (_CAUTION * self.rtol)
        return problem.agree(state.norm * state.norm <= (_HOPE * self.rtol) * (size * size))


def _few(problem: NonlinearProblem, w: Tensor) -> bool:
    """Whether the matrix costs little beside the value."""
    most = _FEW_ROWS if problem.last is None else _FEW_ROWS_WITH_GRAPH
    few = not w.is_cpu or math.prod(w.shape[:2]) <= most
    return few and problem.function.value_and_jacobian is not None


def _prepare(problem: NonlinearProblem, state: HeldState, running: Tensor) -> None:
    """Sets the step lengths, and renews the matrices of the samples that need it, after what the last step has shown.

    A sample that did not move with its own matrix takes a shorter step; one that did not move with an older matrix, or
    for which the old one is not expected to be enough, takes its own.
    """
    if state.previous is None:
        return
    # The residual after another step with the same matrix is about norm (norm / previous).
    enough, stuck = state.norm * state.norm <= state.target * state.previous, None
    if state.lower is not None:
        stuck = ~state.lower & state.fresh
        enough = (enough & state.lower) | stuck
        length = torch.ones_like(state.norm) if state.length is None else state.length
        state.length = torch.where(stuck, 0.5 * length, length.masked_fill(state.lower, 1.0))
    else:
        state.length = None
    if stuck is None and problem.agree(enough):
        state.fresh = False
        return
    outdated = ~enough
    _renew(problem, state, outdated, running)
    state.fresh = outdated if stuck is None else outdated | stuck


def _renew(problem: NonlinearProblem, state: HeldState, outdated: Tensor, running: Tensor) -> None:
    """Replaces the held matrices of the samples that are `outdated`, (batch,), and still running."""
    if state.matrix is not None:
        state.held = state.matrix if problem.agree(outdated) else state.matrix.where(outdated, state.held)
        return
    wanted, at = outdated & running, problem.without_graph()
    rows = wanted.nonzero().squeeze(1)
    if len(rows) == len(wanted) or not problem.rowwise:
        state.held = evaluate_with_matrix(at, state.w)[1].where(wanted, state.held)
    elif len(rows) > 0:
        state.held = state.held.put(rows, evaluate_with_matrix(at.take(rows), take(state.w, rows))[1])
