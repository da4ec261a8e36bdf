"""The one loop: it steps, judges every sample, freezes the finished ones and lets them drop out of the batch."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.core.problem import Problem, per_sample, rms, select
from resolvent.core.solution import Solution, Status
from resolvent.core.solver import Solver, State
from resolvent.core.stopping import Stopping
from resolvent.core.transforms import all_true, any_true, transforming

Looks = Callable[[int], bool]
# The least fall of the residual that counts as progress.
_PROGRESS = 0.999
# Most solves are over before it is worth to ask whether they stall.
_NO_STALL = 4
# Below this many numbers in the batch, gathering the unfinished samples costs more than evaluating the finished ones.
_WORTH_DROPPING = 1 << 14
# How often a residual that was followed by a recurrence may turn out wrong before the sample counts as stalled.
_CONFIRMATIONS = 5


@dataclasses.dataclass
class Progress:
    """What is known of every sample so far. All fields have a row per sample.

    Attributes:
        value, residual: the best iterate, and its residual.
        status: of `Status` codes; a sample whose residual is not finite counts as diverged until the end.
        steps: how many the sample took.
        last: the residual of the last iterate.
        limit: the residual beyond which the sample has diverged.
        reference: the residual that progress is measured against.
        idle: steps since there was progress.
        scale: the size of b.
        tolerance: for the last residual.
        settled: whether all samples are known to have converged.
    """

    value: Tensor
    residual: Tensor
    status: Tensor
    steps: Tensor
    last: Tensor
    limit: Tensor
    reference: Tensor
    idle: Tensor
    scale: Tensor
    tolerance: Tensor
    settled: bool = False

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING.value


class Judge:
    """Decides the fate of every sample after every step. An `rtol` of its own, (batch,), is relative to |b| alone.

    On small systems these decisions cost as much as the solver, so there are no more operations than it takes.
    """

    def __init__(self, problem: Problem, solver: Solver, stopping: Stopping, rtol: Tensor | None = None) -> None:
        self.rtol = stopping.relative(problem.precision) if rtol is None else rtol
        self.exacting = rtol is not None
        # A cotangent may be so small that a fraction of it is zero.
        self.atol = torch.finfo(problem.b.dtype).tiny if problem.linear else stopping.absolute(problem.precision)
        self.patience = stopping.patience
        self.divergence = stopping.divergence
        self.blind = stopping.blind
        # Of a blind solve the last iterate is taken, whose evaluation is known to be the last one.
        self.last_counts = solver.monotone or stopping.blind

    def tolerance(self, scale: Tensor, w: Tensor) -> Tensor:
        """NaN where it would be infinite: nothing is within that."""
        size = scale if self.exacting else torch.maximum(scale, rms(w))
        return (self.rtol * size + self.atol).nan_to_num(nan=torch.nan, posinf=torch.nan)

    def begin(self, problem: Problem, state: State, active: Tensor | None, look: bool) -> Progress:
        norm, scale = state.norm, rms(problem.b)
        tolerance = self.tolerance(scale, state.w)
        steps = torch.zeros_like(norm, dtype=torch.int32)
        progress = Progress(state.w, norm, torch.zeros_like(steps), steps, norm, norm, norm, steps, scale, tolerance)
        converged = norm <= tolerance
        if look and self._unanimous(progress, converged):
            return progress
        if active is not None:
            progress.status = progress.status.masked_fill(~active, Status.CONVERGED.value)
        progress.limit = (self.divergence * torch.maximum(norm, tolerance)).clamp(max=torch.finfo(norm.dtype).max)
        progress.status = self._verdict(progress, converged, progress.running, state)
        return progress

    def update(self, progress: Progress, state: State, running: Tensor, look: bool) -> None:
        norm = state.norm
        progress.steps = progress.steps + running
        progress.last, progress.tolerance = norm, self.tolerance(progress.scale, state.w)
        converged = norm <= progress.tolerance
        # Finished samples have not moved, so that this is true of all if it is of those that were running.
        if look and self._unanimous(progress, converged):
            progress.value, progress.residual = state.w, norm
            return
        if self.last_counts:
            progress.value, progress.residual = state.w, norm
        else:
            better = norm < progress.residual  # Never for a finished sample, since it does not move.
            progress.value = select(better, state.w, progress.value)
            progress.residual = torch.where(better, norm, progress.residual)
        progress.status = self._verdict(progress, converged, running, state)

    def _unanimous(self, progress: Progress, converged: Tensor) -> bool:
        """Whether all samples have converged, which is how most solves end: there is nothing to judge then."""
        progress.settled = all_true(converged)
        if progress.settled:
            progress.status = torch.full_like(progress.status, Status.CONVERGED.value)
        return progress.settled

    def _verdict(self, progress: Progress, converged: Tensor, running: Tensor, state: State) -> Tensor:
        # From the weakest reason to the strongest: a later one overrules.
        verdict = progress.status.masked_fill(~(state.norm <= progress.limit), Status.DIVERGED.value)
        if state.broken is not None:
            verdict = verdict.masked_fill(state.broken, Status.BREAKDOWN.value)
        verdict = verdict.masked_fill(converged, Status.CONVERGED.value)
        return torch.where(running, verdict, progress.status)

    def give_up_stalled(self, progress: Progress) -> None:
        """Who has not got better for longer than the patience lasts?"""
        advanced = progress.last < _PROGRESS * progress.reference
        progress.reference = torch.where(advanced, progress.last, progress.reference)
        progress.idle = (progress.idle + 1).masked_fill(advanced, 0)
        stalled = progress.running & (progress.idle >= self.patience)
        progress.status = progress.status.masked_fill(stalled, Status.STALLED.value)

    def end(self, progress: Progress) -> None:
        """What is still running has run out of steps, and what is not finite is told apart from what diverged."""
        if not (self.blind or progress.settled):
            progress.settled = all_true(progress.status == Status.CONVERGED.value)
        if progress.settled:
            return
        status = progress.status.masked_fill(progress.running, Status.MAX_STEPS.value)
        lost = (status == Status.DIVERGED.value) & ~(progress.last.isfinite() & progress.tolerance.isfinite())
        progress.status = status.masked_fill(lost, Status.NON_FINITE.value)


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
    may_drop = problem.rowwise and not transforming() and not torch.is_grad_enabled()
    for step in span:
        if progress.settled:
            break
        running = progress.running
        if step > 0 and looks(step):  # Before the first step it was asked whether all have converged.
            if not any_true(running):
                break
            if may_drop and progress.value.numel() >= _WORTH_DROPPING:
                rows = running.nonzero().squeeze(1)
                if 2 * len(rows) <= len(running):
                    part = take(progress, rows)
                    rest = range(step, span.stop)
                    _run(problem.take(rows), solver, judge, looks, take(state, rows), part, rest)
                    _put(progress, rows, part)
                    return None
        state = solver.step(problem, state, running)
        judge.update(progress, state, running, looks(step + 1))
        if step >= _NO_STALL and not progress.settled:
            judge.give_up_stalled(progress)
    return state


def iterate(
    problem: Problem,
    solver: Solver,
    stopping: Stopping,
    w: Tensor,
    active: Tensor | None = None,
    rtol: Tensor | None = None,
    before: State | None = None,
) -> tuple[Progress, State | None]:
    """Runs one solver from w on the `active` samples, (batch,); the rest stay as they are.

    `rtol`, (batch,), is for a rough inner solve: it replaces the tolerance sample by sample, and residuals that come
    from a recurrence are believed. `before` is what the solver learned in an earlier solve. Returns what is known of
    every sample, and the last state, if it is one of the whole batch.
    """
    judge = Judge(problem, solver, stopping, rtol)
    looks = stopping.looks(w.device)
    span = range(stopping.max_steps or solver.max_steps)
    state = solver.init(problem, w) if before is None else solver.resume(problem, w, before)
    progress = judge.begin(problem, state, active, looks(0))
    state = _run(problem, solver, judge, looks, state, progress, span)
    judge.end(progress)
    if solver.estimates and rtol is None and not stopping.blind:
        _confirm(problem, solver, judge, looks, progress, span)
    return progress, state


def _confirm(problem: Problem, solver: Solver, judge: Judge, looks: Looks, progress: Progress, span: range) -> None:
    """Measures the residuals that a recurrence only promised, and goes on from there where they were too good."""
    for attempt in range(_CONFIRMATIONS):
        progress.residual = rms(problem.defect(progress.value))
        promised = progress.status == Status.CONVERGED
        wrong = promised & ~(progress.residual <= judge.tolerance(progress.scale, progress.value))
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
        more, _ = iterate(problem, fallback, stopping, done.value, active=unsolved)
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
