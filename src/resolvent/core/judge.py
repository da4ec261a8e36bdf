"""Who has converged, and what became of the others: the fate of every sample after every step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.core.problem import Problem, length, select
from resolvent.core.solution import Status
from resolvent.core.solver import Solver, State
from resolvent.core.stopping import Stopping
from resolvent.core.transforms import all_true, whole

# The least fall of the residual that counts as progress.
_PROGRESS = 0.999


@dataclass
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
        scale: the length of b.
        tolerance: for the last residual.
        settled: whether all samples are known to have converged.
        finished: whether all samples are known to be done, one way or the other.
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
    finished: bool = False

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING.value

    def look(self) -> None:
        """Asks the device, once, for both."""
        least, greatest = torch.stack(whole(self.status).aminmax()).tolist()
        self.finished = least > Status.RUNNING.value
        self.settled = least == greatest == Status.CONVERGED.value


class Judge:
    """Decides the fate of every sample after every step. An `rtol` of its own, (batch,), is relative to |b| alone.

    On small systems these decisions cost as much as the solver, so there are no more operations than it takes.
    """

    def __init__(self, problem: Problem, solver: Solver, stopping: Stopping, rtol: Tensor | None = None) -> None:
        # For lengths, which are root mean squares times this: they are compared with no division.
        ratio = math.sqrt(max(problem.size, 1))
        self.own = None if rtol is None else rtol / ratio
        self.rtol = stopping.relative(problem.precision) / ratio
        # A cotangent may be so small that a fraction of it is zero.
        atol = torch.finfo(problem.b.dtype).tiny if problem.linear else stopping.absolute(problem.precision)
        self.atol = torch.full((), atol, dtype=problem.b.dtype)
        self.patience = stopping.patience
        self.divergence = stopping.divergence
        self.blind = stopping.blind
        # Of a blind solve the last iterate is taken, whose evaluation is known to be the last one.
        self.last_counts = solver.monotone or stopping.blind

    def tolerance(self, scale: Tensor, w: Tensor) -> Tensor:
        """NaN where it would be infinite: nothing is within that."""
        if self.own is None:
            within = torch.add(self.atol, torch.maximum(scale, length(w)), alpha=self.rtol)
        else:
            within = self.own * scale + self.atol
        return within.nan_to_num(nan=torch.nan, posinf=torch.nan)

    def begin(self, problem: Problem, state: State, active: Tensor | None, look: bool) -> Progress:
        norm, scale = state.norm, length(problem.b)
        tolerance = self.tolerance(scale, state.w)
        steps = torch.zeros_like(norm, dtype=torch.int32)
        progress = Progress(state.w, norm, steps, steps, norm, norm, norm, steps, scale, tolerance)
        converged = norm <= tolerance
        if look and self._unanimous(progress, converged):
            return progress
        progress.limit = self.divergence * torch.maximum(norm, tolerance)
        progress.status = self._verdict(progress, converged, state)
        if active is not None:
            progress.status = progress.status.masked_fill(~active, Status.CONVERGED.value)
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
        progress.status = torch.where(running, self._verdict(progress, converged, state), progress.status)

    def _unanimous(self, progress: Progress, converged: Tensor) -> bool:
        """Whether all samples have converged, which is how most solves end: there is nothing to judge then."""
        progress.settled = progress.finished = all_true(converged)
        if progress.settled:
            progress.status = torch.full_like(progress.status, Status.CONVERGED.value)
        return progress.settled

    def _verdict(self, progress: Progress, converged: Tensor, state: State) -> Tensor:
        """Of samples that were running."""
        # From the weakest reason to the strongest: a later one overrules. Less, since a limit may be infinite.
        verdict = torch.where(state.norm < progress.limit, progress.status, Status.DIVERGED.value)
        if state.broken is not None:
            verdict = verdict.masked_fill(state.broken, Status.BREAKDOWN.value)
        return verdict.masked_fill(converged, Status.CONVERGED.value)

    def give_up_stalled(self, progress: Progress) -> None:
        """Who has not got better for longer than the patience lasts?"""
        advanced = progress.last < _PROGRESS * progress.reference
        progress.reference = torch.where(advanced, progress.last, progress.reference)
        progress.idle = (progress.idle + 1).masked_fill(advanced, 0)
        stalled = progress.running & (progress.idle >= self.patience)
        progress.status = progress.status.masked_fill(stalled, Status.STALLED.value)

    def end(self, progress: Progress) -> None:
        """What is still running has run out of steps, and what is not finite is told apart from what diverged."""
        if not (self.blind or progress.finished):
            progress.look()
        if progress.settled:
            return
        status = progress.status.masked_fill(progress.running, Status.MAX_STEPS.value)
        lost = (status == Status.DIVERGED.value) & ~(progress.last.isfinite() & progress.tolerance.isfinite())
        progress.status = status.masked_fill(lost, Status.NON_FINITE.value)
