"""Runs a plan of solvers: each attempt takes the samples that the earlier ones did not solve."""

import torch
from torch import Tensor

from resolvent.equation.contraction import contract, may_contract
from resolvent.equation.contraction_on_device import contract_on_device, contracts_on_device
from resolvent.equation.convergence import Progress, Reached
from resolvent.equation.fixed_point import fixed_point_serves, iterate_fixed_point
from resolvent.equation.loop import iterate, refuse_underflow
from resolvent.equation.norms import flat, per_sample
from resolvent.equation.problem import NonlinearProblem, Problem, changed
from resolvent.equation.solution import Solution, Status
from resolvent.equation.solver import Attempt, Plan, Solver, State
from resolvent.equation.stopping import FixedSteps, StoppingRule
from resolvent.equation.torch_func import all_true, any_true, transforming


def solve(
    problem: Problem,
    plan: Plan,
    stopping: StoppingRule,
    w: Tensor,
    reuse: Solution | None = None,
    steps_first: bool = False,
) -> Solution:
    """Runs a plan: each attempt takes the samples that the earlier ones did not solve.

    With `steps_first` every sample that has a residual makes a step. The usual first guess knows nothing of F. In half
    precision, or with a short step, it may be within the tolerance all the same, and many such layers would do nothing.
    """
    attempts = plan.attempts(problem)
    if isinstance(stopping, FixedSteps) and fixed_point_serves(attempts):
        solution = iterate_fixed_point(problem, attempts[0].solver, stopping, w)
        return changed(solution, status=_without_overflow(problem, solution.value, solution.status))
    on_device = attempts[0].quick and contracts_on_device(problem, stopping)
    if len(attempts) > 1 and attempts[0].quick and not (on_device or _worth_trying(problem, stopping)):
        attempts = attempts[1:]
    done: Reached
    state: State | None = None
    if on_device:
        done = contract_on_device(problem, attempts[0], stopping.for_contraction(), w)
    elif attempts[0].quick:
        done = contract(problem, attempts[0], stopping.for_contraction(), w, steps_first)
        if isinstance(done, Progress):  # Otherwise all samples have simply converged.
            refuse_underflow(problem, stopping, done)
    else:
        before = _learned(reuse, attempts[0].solver, w)
        done, state = iterate(problem, attempts[0], stopping, w, before=before, steps_first=steps_first)
    index, used = torch.zeros_like(done.steps), 1
    all_converged = done.all_converged
    for number, fallback in enumerate(attempts[1:], start=1):
        if all_converged or stopping.fixed:
            break
        unsolved = done.status != Status.CONVERGED.value
        if number == 1 and attempts[0].quick and all_true(unsolved):
            done, state = _start_over(problem, fallback, stopping, done)
            all_converged = done.all_converged
        else:
            all_converged, state = _fall_back(problem, fallback, stopping, done, unsolved), None
        used = number + 1
        index = index.masked_fill(unsolved, number)
    status = _without_overflow(problem, done.value, done.status)
    if status is not done.status and all_converged:
        all_converged = all_true(status == Status.CONVERGED.value)
    return Solution(
        value=done.value,
        status=status,
        residual=done.residual,
        steps=done.steps,
        solver_index=index,
        solvers=tuple(attempt.solver for attempt in attempts[:used]),
        work=problem.work,
        all_converged=all_converged,
        matrix=None if state is None else state.matrix,
        state=state if attempts[0].solver.learns and not transforming() else None,
        linear=problem.linear,
        quick=attempts[0].quick,
        rounds=done.rounds,
    )


def _worth_trying(problem: Problem, stopping: StoppingRule) -> bool:
    """Whether the quick attempt of a plan can solve samples."""
    contracting = problem.contracting
    return may_contract(problem, stopping) and (contracting is None or any_true(contracting))


def _start_over(
    problem: Problem, attempt: Attempt, stopping: StoppingRule, done: Reached
) -> tuple[Progress, State | None]:
    """Runs the next solver on the whole batch, none of which the quick attempt solved. Unlike a fallback, its last
    state is known, and with it the matrix for the backward pass."""
    progress, state = iterate(problem, attempt, stopping, done.value, natural=done.natural)
    progress.steps = progress.steps + done.steps
    return progress, state


def _fall_back(problem: Problem, fallback: Attempt, stopping: StoppingRule, done: Reached, unsolved: Tensor) -> bool:
    """Runs another solver on the unsolved samples, on them alone if F allows it. Returns whether it solved them all."""
    if problem.rowwise and not (transforming() or torch.is_grad_enabled()):
        rows = unsolved.nonzero().squeeze(1)
        natural = None if done.natural is None else done.natural[rows]
        more, _ = iterate(problem.take(rows), fallback, stopping, done.value[rows], natural=natural)
        _keep_better(more, done.value[rows], done.residual[rows])
        done.value = done.value.index_copy(0, rows, more.value)
        done.residual = done.residual.index_copy(0, rows, more.residual)
        done.status = done.status.index_copy(0, rows, more.status)
        done.steps = done.steps.index_add(0, rows, more.steps)
        return more.all_converged
    more, _ = iterate(problem, fallback, stopping, done.value, active=unsolved, natural=done.natural)
    _keep_better(more, done.value, done.residual)
    done.value = torch.where(per_sample(unsolved, done.value), more.value, done.value)
    done.residual = torch.where(unsolved, more.residual, done.residual)
    done.status = torch.where(unsolved, more.status, done.status)
    done.steps = done.steps + torch.where(unsolved, more.steps, 0)
    return more.all_converged


def _keep_better(more: Progress, value: Tensor, residual: Tensor) -> None:
    """Returns samples that a fallback did not solve to the earlier value, if its residual is smaller."""
    better = (more.status == Status.CONVERGED.value) | ~(residual <= more.residual)
    more.value = torch.where(per_sample(better, value), more.value, value)
    more.residual = torch.where(better, more.residual, residual)


def _without_overflow(problem: Problem, value: Tensor, status: Tensor) -> Tensor:
    """The status, but not finite where a value does not fit into the dtype of the result."""
    if not isinstance(problem, NonlinearProblem) or problem.argument_dtype.itemsize >= value.dtype.itemsize:
        return status
    fits = flat(value.abs() <= torch.finfo(problem.argument_dtype).max).all(1)
    return torch.where(fits, status, Status.NON_FINITE.value)


def _learned(reuse: Solution | None, solver: Solver, w: Tensor) -> State | None:
    """The state to resume from, if it has the same solver type and a batch of the same shape, dtype and device."""
    if reuse is None or reuse.state is None or transforming() or type(reuse.solvers[0]) is not type(solver):
        return None
    old = reuse.state.w
    same = old.shape == w.shape and old.dtype == w.dtype and old.device == w.device
    return reuse.state if same else None
