"""The solver loop: steps all samples, checks convergence, freezes finished samples and drops them from the batch."""

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.equation import norms
from resolvent.equation.contraction import MIN_SIZE_TO_COMPACT, contract, may_contract
from resolvent.equation.contraction_on_device import contract_on_device, contracts_on_device
from resolvent.equation.convergence import Convergence, Progress, Reached
from resolvent.equation.fixed_point import fixed_point_serves, iterate_fixed_point
from resolvent.equation.matrix import Matrix
from resolvent.equation.norms import flat, per_sample, rms, select
from resolvent.equation.prediction import PredictedLast, in_units
from resolvent.equation.problem import NonlinearProblem, Problem, changed
from resolvent.equation.solution import Solution, Status
from resolvent.equation.solver import Attempt, Plan, Solver, State
from resolvent.equation.stopping import FixedSteps, StoppingRule
from resolvent.equation.torch_func import all_true, any_true, transforming
from resolvent.equation.verification import verify

# Stalling is not tested in the first steps: most solves end sooner.
_STEPS_BEFORE_STALLING = 4
# As `MIN_SIZE_TO_COMPACT`, on a GPU, and on a CPU for methods that make and factorize a matrix in every step.
_MIN_SIZE_TO_COMPACT_ON_DEVICE, _MIN_SIZE_TO_COMPACT_MATRICES = 1 << 22, 1 << 10
# On a GPU, a check tests whether all samples converged; every fourth step it tests whether all are finished instead.
_RARELY = 4
# How often a residual computed by a recurrence may turn out wrong before the sample counts as stalled.
_CONFIRMATIONS = 5


def take(state: Any, rows: Tensor) -> Any:
    """The rows of every tensor in a (nested) record, list or tuple."""
    if isinstance(state, Tensor):
        return norms.take(state, rows)
    if isinstance(state, Matrix):
        return state.take(rows)
    if isinstance(state, list | tuple):
        return type(state)(take(item, rows) for item in state)
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        items = {f.name: take(getattr(state, f.name), rows) for f in dataclasses.fields(state)}
        return dataclasses.replace(state, **items)
    return state


def _put(into: Progress, rows: Tensor, part: Progress) -> None:
    for f in dataclasses.fields(Progress):
        if isinstance(whole := getattr(into, f.name), Tensor):
            setattr(into, f.name, norms.put(whole, rows, getattr(part, f.name)))


def iterate(
    problem: Problem,
    attempt: Attempt,
    stopping: StoppingRule,
    w: Tensor,
    active: Tensor | None = None,
    rtol: Tensor | None = None,
    before: State | None = None,
    natural: Tensor | None = None,
    confirmations: int = _CONFIRMATIONS,
) -> tuple[Progress, State | None]:
    """Runs one solver from w on the `active` samples, (batch,); the others do not change.

    A large batch is compacted to its unfinished samples when at most half of it is unfinished.

    Arguments:
        rtol: (batch,), for a rough inner solve. Replaces the tolerance of each sample; residuals computed by a
            recurrence are then not verified.
        before: the final state of an earlier solve, to resume from.
        natural: `Progress.natural` of the previous attempt.
        confirmations: how often residuals computed by a recurrence are verified.

    Returns:
        The progress of every sample, and the last state, or None if the batch was compacted.
    """
    solver = attempt.solver
    convergence = Convergence(problem, solver, stopping, rtol)
    checks = stopping.checks(w.device)
    # Graphs are recorded in every step, but gradients of weights computed in the last alone.
    part = problem.without_graph() if problem.linear else problem
    state: Any = solver.init(part, w) if before is None else solver.resume(part, w, before)
    start, norm = state, state.norm
    progress = convergence.begin(part, state, active, checks(0), natural)
    may_compact = not stopping.fixed and _may_compact(problem, solver, w)
    near = w.device.type == "cpu"
    whole: list[tuple[Progress, Tensor]] = []
    limit = (stopping.limit or attempt.max_steps or solver.max_steps) - solver.at_once
    predicted = None if part is problem else _predicted(problem, solver, limit if stopping.fixed else None)
    for step in range(limit):
        if progress.finished:
            break
        running = progress.running
        if step > 0 and may_compact and checks(step):
            rows = running.nonzero().squeeze(1)
            if 2 * len(rows) <= len(running):
                whole.append((progress, rows))
                part, state, progress = part.take(rows), take(state, rows), take(progress, rows)
                running = progress.running
        at = (
            part
            if predicted is None
            else predicted.problem_at(step + 1, partial(in_units, norm, state.norm, progress.earned))
        )
        norm = state.norm
        state = solver.step(at, state, running)
        check = checks(step + 1)
        rare = (step + 1) % _RARELY == 0
        convergence.update(part, progress, state, running, check and (near or not rare))
        if not progress.finished and step >= _STEPS_BEFORE_STALLING:
            convergence.give_up_stalled(progress)
        if not progress.finished and check and (near or rare):
            progress.check()
    for outer, rows in reversed(whole):
        _put(outer, rows, progress)
        progress = outer
    convergence.end(progress)
    last = None if whole else state
    if not (stopping.fixed or (progress.unanimous and not solver.estimates) or rtol is not None):
        if solver.estimates:
            _confirm(problem, attempt, stopping, convergence, progress, confirmations)
        matrix = last.matrix if last is not None and solver.monotone else None
        verify(part if problem.linear else problem, attempt, stopping, convergence, progress, start, matrix, iterate)
    _refuse_underflow(problem, stopping, progress)
    return progress, last


def _predicted(problem: Problem, solver: Solver, known: int | None) -> PredictedLast | None:
    """Predicts the last step of a backward solve; None if the last product of a step is not at its iterate."""
    if solver.estimates or (known is not None and not solver.last_evaluated):
        return None
    return PredictedLast(problem, 2, known)


def _may_compact(problem: Problem, solver: Solver, w: Tensor) -> bool:
    """Whether the batch is large enough to drop finished samples, and F allows it."""
    if w.device.type != "cpu":
        enough = _MIN_SIZE_TO_COMPACT_ON_DEVICE
    else:
        enough = _MIN_SIZE_TO_COMPACT_MATRICES if solver.has_matrix else MIN_SIZE_TO_COMPACT
    return w.numel() >= enough and problem.rowwise and not transforming() and not torch.is_grad_enabled()


def _refuse_underflow(problem: Problem, stopping: StoppingRule, progress: Progress) -> None:
    """Measures residuals again whose squares may underflow, where the tolerance is as small as they are."""
    if problem.linear or stopping.fixed or stopping.absolute(problem.precision) != 0:
        return
    rtol = stopping.relative(problem.precision)
    kind = torch.finfo(progress.residual.dtype)
    tiny = progress.earned <= (kind.tiny / kind.eps) ** 0.5
    if not any_true(tiny):
        return
    with torch.no_grad():
        residual, b, w = (_scaled_rms(x.detach()) for x in (problem.defect(progress.value), problem.b, progress.value))
    progress.residual = torch.where(tiny, residual, progress.residual)
    claimed = progress.status == Status.CONVERGED.value
    # The first measurement may have been off by rounding.
    wrong = tiny & claimed & (residual > 1.001 * rtol * torch.maximum(b, w))
    progress.status = progress.status.masked_fill(wrong, Status.STALLED.value)
    progress.check()


def _scaled_rms(x: Tensor) -> Tensor:
    """The root mean square of each sample, scaled so that squares do not underflow."""
    largest = flat(x).abs().amax(1)
    return largest * rms(x / per_sample(torch.where(largest == 0, 1.0, largest), x))


def _confirm(
    problem: Problem,
    attempt: Attempt,
    stopping: StoppingRule,
    convergence: Convergence,
    progress: Progress,
    confirmations: int,
) -> None:
    """Measures residuals that came from a recurrence, and continues the solve where they were too small."""
    progress.residual = rms(problem.defect(progress.value))
    promised = progress.status == Status.CONVERGED
    convergence.measure(progress, progress.value)
    wrong = promised & ~(progress.residual <= convergence.tolerance(progress))
    if not any_true(wrong):
        progress.all_converged = progress.all_converged or all_true(promised)
        return
    progress.all_converged = progress.unanimous = False
    if confirmations <= 1:
        progress.status = torch.where(wrong, Status.STALLED.value, progress.status)
        return
    again, _ = iterate(
        problem, attempt, stopping, progress.value, wrong, natural=progress.natural, confirmations=confirmations - 1
    )
    progress.value = select(wrong, again.value, progress.value)
    progress.residual = torch.where(wrong, again.residual, progress.residual)
    progress.status = torch.where(wrong, again.status, progress.status)
    progress.steps = progress.steps + torch.where(wrong, again.steps, 0)
    progress.check()


def solve(problem: Problem, plan: Plan, stopping: StoppingRule, w: Tensor, reuse: Solution | None = None) -> Solution:
    """Runs a plan: each attempt takes the samples that the earlier ones did not solve."""
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
        done = contract(problem, attempts[0], stopping.for_contraction(), w)
        if isinstance(done, Progress):  # Otherwise all samples have simply converged.
            _refuse_underflow(problem, stopping, done)
    else:
        done, state = iterate(problem, attempts[0], stopping, w, before=_learned(reuse, attempts[0].solver, w))
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
