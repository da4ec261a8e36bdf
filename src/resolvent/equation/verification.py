"""Verification: corrects statuses that the tolerance alone gets wrong, after a solve that did not simply converge."""

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence, Progress
from resolvent.equation.linear import ErrorEquation, LinearProblem, error_bound, error_equation
from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.matrix import Matrix
from resolvent.equation.mixing import LayerMixing
from resolvent.equation.norms import length, per_sample, rms, select, take, unpatterned
from resolvent.equation.problem import NonlinearProblem, Problem
from resolvent.equation.solution import Status
from resolvent.equation.solver import Attempt, Solver, State
from resolvent.equation.stopping import Stopping, StoppingRule
from resolvent.equation.torch_func import any_true, transforming

# For iterates far from the start: the accuracy of the error estimate, its most steps, and the largest accepted error
# relative to the value.
_ROUGHLY, _MOST_STEPS, _LARGEST_ERROR = 0.1, 60, 0.5
# Up to this many unknowns the error is computed from A; the second number is for layers as one equation.
_MOST_DENSE_UNKNOWNS, _MOST_IN_LAYERS = 64, 256
# Rounding leaves a residual of about this many roundings of the terms of a linear system.
_ROUNDINGS = 4.0

Iterate = Callable[..., tuple[Progress, State | None]]


def verify(
    problem: Problem,
    attempt: Attempt,
    stopping: StoppingRule,
    convergence: Convergence,
    progress: Progress,
    start: State,
    matrix: Matrix | None,
    iterate: Iterate,
) -> None:
    """Corrects statuses that the tolerance alone gets wrong: linear systems at rounding, and iterates far from the
    start.

    Arguments:
        start: the first state of the solve.
        matrix: A at the value, if the solver has it.
        iterate: the loop, for a linear system, a solver, a stopping rule, the start and rtol.
    """
    if isinstance(problem, LinearProblem) and not progress.all_converged:
        _accept_rounding(problem, progress)
    if not progress.unanimous:
        far = convergence.far(progress)
        if any_true(far):
            with torch.no_grad():
                error = _error(problem, attempt.solver, progress, far, matrix, iterate)
            lost = far & ~(error <= _LARGEST_ERROR * rms(progress.value))
            if not (problem.linear or attempt.solver.estimates or transforming()):
                lost = lost & ~_improve(problem, attempt, stopping, progress, lost, iterate)
            _reset(problem, progress, lost, start)


def _improve(
    problem: Problem, attempt: Attempt, stopping: StoppingRule, progress: Progress, lost: Tensor, iterate: Iterate
) -> Tensor:
    """Continues those of the samples `lost` that are not far from the start: their residual is too large for the first
    way to converge, and may still fall. Returns the mask (batch,) of those that converge that way."""
    natural = progress.natural
    assert natural is not None
    near = lost & (progress.size <= progress.horizon)
    if not any_true(near):
        return near
    # An `rtol` is relative to abs(b), and the first way also to the first guess and its residual.
    rtol = stopping.relative(problem.precision) * torch.where(progress.scale > 0, natural / progress.scale, 1.0)
    more, _ = iterate(problem, attempt, stopping, progress.value, near, rtol)
    improved = near & (more.status == Status.CONVERGED.value) & (length(more.value) <= progress.horizon)
    progress.value = select(improved, more.value, progress.value)
    progress.residual = torch.where(improved, more.residual, progress.residual)
    progress.steps = progress.steps + torch.where(near, more.steps, 0)
    return improved


def _error(
    problem: Problem, solver: Solver, progress: Progress, far: Tensor, matrix: Matrix | None, iterate: Iterate
) -> Tensor:
    """(batch,), the error that follows from the residual, or a number at which it is accepted, for the samples `far`
    from the start."""
    assert isinstance(problem, NonlinearProblem | LinearProblem)
    value, residual, size = progress.value, progress.residual, rms(progress.value)
    if matrix is None and isinstance(problem, LinearProblem) and problem.linearization.matrix_given:
        matrix = problem.linearization.matrix()
    if matrix is None and problem.size > _most_dense(problem):
        return _estimated_error(error_equation(problem, value), solver, iterate)
    if transforming():
        matrix = error_equation(problem, value).linearization.matrix() if matrix is None else matrix
        return error_bound(matrix, residual, size, problem.precision)
    rows = far.nonzero().squeeze(1)
    own = _matrix_of(problem, value, rows) if matrix is None else matrix.take(rows)
    residual, size = residual[rows], size[rows]
    bound = error_bound(own, residual, size, problem.precision, limit=_LARGEST_ERROR * size)
    return torch.zeros_like(progress.residual).index_copy(0, rows, bound)


def _most_dense(problem: NonlinearProblem | LinearProblem) -> int:
    """Up to how many unknowns the error is computed from the matrix."""
    if isinstance(problem, NonlinearProblem) and problem.rowwise and isinstance(problem.function.mix, LayerMixing):
        return _MOST_IN_LAYERS
    return _MOST_DENSE_UNKNOWNS


def _matrix_of(problem: NonlinearProblem | LinearProblem, w: Tensor, rows: Tensor) -> Matrix:
    """A at the iterates of the samples `rows`. For a rowwise F, one evaluation of these samples alone."""
    if isinstance(problem, NonlinearProblem) and problem.rowwise:
        return evaluate_with_matrix(problem.detach().take(rows), take(w, rows))[1]
    return error_equation(problem, w).linearization.matrix().take(rows)


def _reset(problem: Problem, progress: Progress, lost: Tensor, start: State) -> None:
    """Marks the samples `lost` as diverged and resets them to the first state; to zero in a linear system."""
    w, norm = (torch.zeros_like(start.w), rms(problem.b)) if problem.linear else (start.w, start.norm)
    progress.value = select(~lost, progress.value, w)
    progress.residual = torch.where(lost, norm, progress.residual)
    reason = Status.BREAKDOWN if problem.linear else Status.DIVERGED
    progress.status = progress.status.masked_fill(lost, reason.value)
    progress.check()


def _estimated_error(equation: ErrorEquation, solver: Solver, iterate: Iterate) -> Tensor:
    """|A^{-1} r| plus |A^{-1}| times the rounding, by two rough solves; infinite where they fail.

    The solution of the first consists mostly of the directions that A^{-1} amplifies most. It is the right-hand side of
    the second, transposed system, and the length of that solution estimates |A^{-1}|. In the backward pass the second
    system is not transposed: F may not be differentiable twice.
    """
    first = equation.system(equation.r + per_sample(equation.rounding, equation.r) * unpatterned(equation.r), False)
    d, known = _roughly(first, solver, iterate)
    size = rms(d)
    backward = equation.transposed
    second = equation.system(d / per_sample(torch.where(size == 0, 1.0, size), d), not backward)
    u, known_too = _roughly(second, solver, iterate)
    return torch.where(known & known_too, size + rms(u) * equation.rounding, torch.inf)


def _roughly(system: LinearProblem, solver: Solver, iterate: Iterate) -> tuple[Tensor, Tensor]:
    """The solution of a linear system to a relative residual of 0.1, and (batch,) whether it was found."""
    attempt = solver.linear_plan(system).attempts(system)[-1]
    tolerance = torch.full_like(rms(system.b), _ROUGHLY)
    found, _ = iterate(system, attempt, Stopping(max_steps=_MOST_STEPS), torch.zeros_like(system.b), rtol=tolerance)
    return found.value, rms(system.defect(found.value)) <= 2 * _ROUGHLY * rms(system.b)


def _accept_rounding(system: LinearProblem, progress: Progress) -> None:
    """Marks samples as converged that stopped at the rounding of the terms, eps (|A| |u| + |g|), which no method can
    go below."""
    floor = _ROUNDINGS * torch.finfo(system.precision).eps * (system.norm() * rms(progress.value) + rms(system.b))
    stopped = (progress.status == Status.STALLED.value) | (progress.status == Status.MAX_STEPS.value)
    progress.status = torch.where(stopped & (progress.residual <= floor), Status.CONVERGED.value, progress.status)
    progress.check()
