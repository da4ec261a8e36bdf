"""The solver loop: steps all samples, checks convergence, freezes finished samples and drops them from the batch."""

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.equation import norms
from resolvent.equation.contraction import MIN_SIZE_TO_COMPACT
from resolvent.equation.convergence import Convergence, Progress
from resolvent.equation.matrix import Matrix
from resolvent.equation.norms import flat, per_sample, rms, select
from resolvent.equation.prediction import PredictedLast, in_units
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Status
from resolvent.equation.solver import Attempt, Solver, State
from resolvent.equation.stopping import StoppingRule
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
    steps_first: bool = False,
) -> tuple[Progress, State | None]:
    """Runs one solver from w on the `active` samples, (batch,); the others do not change.

    A large batch is compacted to its unfinished samples when at most half of it is unfinished.

    Arguments:
        rtol: (batch,), for a rough inner solve. Replaces the tolerance of each sample; residuals computed by a
            recurrence are then not verified.
        before: the final state of an earlier solve, to resume from.
        natural: `Progress.natural` of the previous attempt.
        confirmations: how often residuals computed by a recurrence are verified.
        steps_first: see `solve`.

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
    progress = convergence.begin(part, state, active, checks(0), natural, steps_first)
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
    refuse_underflow(problem, stopping, progress)
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


def refuse_underflow(problem: Problem, stopping: StoppingRule, progress: Progress) -> None:
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
