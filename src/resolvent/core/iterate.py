"""The one loop: it steps, judges every sample, freezes the finished ones and lets them drop out of the batch."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.core.judge import Judge, Progress
from resolvent.core.linear_problem import LinearProblem, error_equation
from resolvent.core.problem import Problem, per_sample, rms, select
from resolvent.core.solution import Solution, Status
from resolvent.core.solver import Solver, State
from resolvent.core.stopping import Stopping
from resolvent.core.transforms import all_true, any_true, transforming

Looks = Callable[[int], bool]
# Most solves are over before it is worth to ask whether they stall.
_NO_STALL = 4
# Below this many numbers in the batch, gathering the unfinished samples costs more than evaluating the finished ones.
_WORTH_DROPPING, _WORTH_DROPPING_ON_DEVICE = 1 << 14, 1 << 22
# Mostly all samples converge, which takes few operations to ask a device for; whether some gave up is asked so rarely.
_RARELY = 4
# Far from home: the accuracy of the estimated error and the most steps for it, and the largest error beside the value.
_ROUGHLY, _MOST_STEPS, _LARGEST_ERROR = 0.1, 60, 0.5
# The residual that rounding leaves in a linear system is about so many roundings of its terms.
_ROUNDINGS = 4.0
# How often a residual that was followed by a recurrence may turn out wrong before the sample counts as stalled.
_CONFIRMATIONS = 5


def take(state: Any, rows: Tensor) -> Any:
    """The rows of every tensor in a (nested) record, list or tuple."""
    if isinstance(state, Tensor):
        return state[rows]
    if isinstance(state, list | tuple):
        return type(state)(take(item, rows) for item in state)
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        items = {f.name: take(getattr(state, f.name), rows) for f in dataclasses.fields(state)}
        return dataclasses.replace(state, **items)
    return state


def _put(into: Progress, rows: Tensor, part: Progress) -> None:
    for f in dataclasses.fields(Progress):
        if isinstance(whole := getattr(into, f.name), Tensor):
            setattr(into, f.name, whole.index_copy(0, rows, getattr(part, f.name)))


def _run(
    problem: Problem, solver: Solver, judge: Judge, looks: Looks, state: Any, progress: Progress, span: range
) -> Any:
    """Steps until all samples are done; the state, where it still belongs to the whole batch, else None."""
    near = progress.value.device.type == "cpu"
    worth_dropping = progress.value.numel() >= (_WORTH_DROPPING if near else _WORTH_DROPPING_ON_DEVICE)
    may_drop = worth_dropping and problem.rowwise and not transforming() and not torch.is_grad_enabled()
    for step in span:
        if progress.finished:
            break
        running = progress.running
        if step > 0 and may_drop and looks(step):
            rows = running.nonzero().squeeze(1)
            if 2 * len(rows) <= len(running):
                part = take(progress, rows)
                rest = range(step, span.stop)
                _run(problem.take(rows), solver, judge, looks, take(state, rows), part, rest)
                _put(progress, rows, part)
                return None
        state = solver.step(problem, state, running)
        look = looks(step + 1)
        rare = (step + 1) % _RARELY == 0
        judge.update(progress, state, running, look and (near or not rare))
        if not progress.finished and step >= _NO_STALL:
            judge.give_up_stalled(progress)
        if not progress.finished and look and (near or rare):
            progress.look()
    return state


def iterate(
    problem: Problem,
    solver: Solver,
    stopping: Stopping,
    w: Tensor,
    active: Tensor | None = None,
    rtol: Tensor | None = None,
    before: State | None = None,
    home: Tensor | None = None,
) -> tuple[Progress, State | None]:
    """Runs one solver from w on the `active` samples, (batch,); the rest stay as they are.

    `rtol`, (batch,), is for a rough inner solve: it replaces the tolerance sample by sample, and residuals that come
    from a recurrence are believed. `before` is what the solver learned in an earlier solve. `home` is that of the solve
    before this one, see `Progress`. Returns what is known of every sample, and the last state, if it is one of the
    whole batch.
    """
    judge = Judge(problem, solver, stopping, rtol)
    looks = stopping.looks(w.device)
    span = range(stopping.max_steps or solver.max_steps)
    state = solver.init(problem, w) if before is None else solver.resume(problem, w, before)
    first = state.norm
    progress = judge.begin(problem, state, active, looks(0), home)
    state = _run(problem, solver, judge, looks, state, progress, span)
    judge.end(progress)
    if stopping.blind or progress.unanimous:
        return progress, state
    if solver.estimates and rtol is None:
        _confirm(problem, solver, judge, looks, progress, span)
    if progress.home is not None and any_true(progress.far):
        _send_home(problem, solver, progress, w, first)
    if isinstance(problem, LinearProblem) and rtol is None and not progress.settled:
        _accept_rounding(problem, progress)
    return progress, state


def _accept_rounding(system: LinearProblem, progress: Progress) -> None:
    """No method gets below the rounding of the terms, eps (|A| |u| + |g|): whoever stopped there has converged."""
    floor = _ROUNDINGS * torch.finfo(system.precision).eps * (system.norm() * rms(progress.value) + rms(system.b))
    progress.status = torch.where(progress.residual <= floor, Status.CONVERGED.value, progress.status)
    progress.look()


def _send_home(problem: Problem, solver: Solver, progress: Progress, w: Tensor, first: Tensor) -> None:
    """Far from home a sample has converged only if the error that follows from its residual is small beside it. The
    others have diverged, and are put back to where they began: at w, with the residuals `first`."""
    far = progress.far
    system = error_equation(problem.detach(), progress.value.detach())
    linear, start = solver.linear_solver(system), torch.zeros_like(progress.value)
    with torch.no_grad():
        tolerance = torch.full_like(progress.residual, _ROUGHLY)
        error, _ = iterate(system, linear, Stopping(max_steps=_MOST_STEPS), start, active=far, rtol=tolerance)
        known = rms(system.defect(error.value)) <= 2 * _ROUGHLY * rms(system.b)
        lost = far & ~(known & (rms(error.value) <= _LARGEST_ERROR * rms(progress.value)))
    progress.value = select(~lost, progress.value, w)
    progress.residual = torch.where(lost, first, progress.residual)
    progress.status = progress.status.masked_fill(lost, Status.DIVERGED.value)
    progress.look()


def _confirm(problem: Problem, solver: Solver, judge: Judge, looks: Looks, progress: Progress, span: range) -> None:
    """Measures the residuals that a recurrence only promised, and goes on from there where they were too good."""
    for attempt in range(_CONFIRMATIONS):
        first = progress.residual = rms(problem.defect(progress.value))
        promised = progress.status == Status.CONVERGED
        wrong = promised & ~(progress.residual <= judge.tolerance(progress, State(w=progress.value, norm=first)))
        if not any_true(wrong):
            progress.settled = progress.settled or all_true(promised)
            return
        progress.settled = False
        if attempt == _CONFIRMATIONS - 1:
            progress.status = torch.where(wrong, Status.STALLED.value, progress.status)
            return
        state = solver.init(problem, progress.value)
        again = judge.begin(problem, state, wrong, look=False)
        _run(problem, solver, judge, looks, state, again, span)
        judge.end(again)
        progress.value = torch.where(per_sample(wrong, again.value), again.value, progress.value)
        progress.status = torch.where(wrong, again.status, progress.status)
        progress.steps = progress.steps + torch.where(wrong, again.steps, 0)


def solve(problem: Problem, solver: Solver, stopping: Stopping, w: Tensor, reuse: Solution | None = None) -> Solution:
    """Runs the solver's plan: every stage takes the samples that the ones before it did not solve."""
    stages: Sequence[Solver] = solver.plan(problem)
    done, state = iterate(problem, stages[0], stopping, w, before=_learned(reuse, stages[0], w))
    stage, used = torch.zeros_like(done.steps), 1
    settled = done.settled
    for index, fallback in enumerate(stages[1:], start=1):
        if settled or stopping.blind:
            break
        unsolved = done.status != Status.CONVERGED.value
        more, _ = iterate(problem, fallback, stopping, done.value, active=unsolved, home=done.home)
        state, used = None, index + 1
        done.value = torch.where(per_sample(unsolved, done.value), more.value, done.value)
        done.residual = torch.where(unsolved, more.residual, done.residual)
        done.status = torch.where(unsolved, more.status, done.status)
        done.steps = done.steps + torch.where(unsolved, more.steps, 0)
        stage = stage.masked_fill(unsolved, index)
        settled = more.settled
    return Solution(
        value=done.value,
        status=done.status,
        residual=done.residual,
        steps=done.steps,
        stage=stage,
        solvers=tuple(stages[:used]),
        work=problem.work,
        settled=settled,
        matrix=None if state is None else state.matrix,
        state=state if stages[0].learns and not transforming() else None,
    )


def _learned(reuse: Solution | None, solver: Solver, w: Tensor) -> State | None:
    """The state to resume from, if it is one of this solver and of a batch like this one."""
    if reuse is None or reuse.state is None or transforming() or type(reuse.solvers[0]) is not type(solver):
        return None
    old = reuse.state.w
    same = old.shape == w.shape and old.dtype == w.dtype and old.device == w.device
    return reuse.state if same else None
