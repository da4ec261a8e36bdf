"""Convergence: the status of every sample after each step.

A sample has converged when its residual is within the tolerance of `Stopping`, which is relative to max(|b|, |w|). The
size of w counts because rounding alone leaves a residual of that relative size. It must not be *earned*: where an
equation has no solution, w can run away until any residual is small beside it. So an iterate is called *far from home*
where it is much larger than b, the first guess and the first residual together, and there a small relative residual is
no evidence of a solution. A far sample converges only if

1. its residual is small beside what the solve began with, or at the rounding of w, and
2. the error that follows from it, A^{-1} (r + rounding) with A = I - tau F'(w), is at most half of w.

At a pole A is singular, the error is infinite, and the sample has diverged. A large solution that is well conditioned
passes: with |A^{-1}| eps below one half, rounding leaves an error of less than half of w in every precision.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.norms import length, select
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Status
from resolvent.equation.solver import Solver, State
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.torch_func import all_true, whole

# The least fall of the residual that counts as progress.
_PROGRESS = 0.999
# Far from home is an iterate so many times as large as all that the solve began with, or fewer where the tolerance is
# loose: the tolerance that its size earns is to stay below this fraction of what the solve began with.
_FAR, _LEAST_FAR, _EVIDENCE = 10.0, 2.0, 0.05
# The residual of an iterate far from home has to fall to this many roundings of its size.
_ROUNDINGS = 4.0


@dataclass
class Progress:
    """What is known of every sample so far. All fields have a row per sample.

    Attributes:
        value, residual: the best iterate, and its residual; the last one where the sample has converged.
        status: of `Status` codes; a sample whose residual is not finite counts as diverged until the end.
        steps: how many the sample took.
        last: the residual of the last iterate.
        limit: the residual beyond which the sample has diverged.
        reference: the residual that progress is measured against.
        idle: steps since there was progress.
        scale: the length of b.
        home: the length beyond which an iterate is far from home; None where that cannot happen.
        tolerance: for the last residual.
        size: the length of the last iterate.
        unanimous: whether all samples were seen to converge at one check, and none far from home.
        all_converged: whether all samples are known to have converged.
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
    home: Tensor | None
    tolerance: Tensor
    size: Tensor
    unanimous: bool = False
    all_converged: bool = False
    finished: bool = False

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING.value

    @property
    def far(self) -> Tensor:
        """(batch,), samples that claim convergence far from home."""
        assert self.home is not None
        return (self.status == Status.CONVERGED.value) & (length(self.value) > self.home)

    def check(self) -> None:
        """Asks the device, once, for `finished` and `all_converged`."""
        least, greatest = torch.stack(whole(self.status).aminmax()).tolist()
        self.finished = least > Status.RUNNING.value
        self.all_converged = least == greatest == Status.CONVERGED.value


class Convergence:
    """Decides the status of every sample after every step. If `rtol` (batch,) is given, it replaces that of `Stopping`
    and is relative to |b|.

    On small systems these decisions cost as much as the solver, so there are no more operations than it takes.
    """

    def __init__(self, problem: Problem, solver: Solver, stopping: StoppingRule, rtol: Tensor | None = None) -> None:
        # For lengths, which are root mean squares times this: they are compared with no division.
        ratio = math.sqrt(max(problem.size, 1))
        self.ratio = ratio
        self.own = None if rtol is None else rtol / ratio
        relative = stopping.relative(problem.precision)
        self.rtol = relative / ratio
        # A cotangent may be so small that a fraction of it is zero.
        atol = torch.finfo(problem.b.dtype).tiny if problem.linear else stopping.absolute(problem.precision)
        self.atol = torch.full((), atol, dtype=problem.b.dtype)
        self.rounding = min(relative, _ROUNDINGS * torch.finfo(problem.precision).eps) / ratio
        self.far = min(_FAR, max(_LEAST_FAR, _EVIDENCE / relative)) if relative > 0 else _FAR
        # A linear system is solved to a residual relative to its right-hand side and has no home to leave.
        self.can_leave = not problem.linear
        self.patience = stopping.patience
        self.divergence = stopping.divergence
        self.fixed = stopping.fixed
        # Of a fixed number of steps the last iterate is taken, whose evaluation is known to be the last one.
        self.last_counts = solver.monotone or stopping.fixed

    def tolerance(self, progress: Progress, state: State) -> Tensor:
        """For the residual of an iterate. NaN where it would be infinite: nothing is within that."""
        size = progress.size = length(state.w)
        if self.own is not None:
            within = self.own * progress.scale + self.atol
        elif progress.home is None:
            within = torch.add(self.atol, torch.maximum(progress.scale, size), alpha=self.rtol)
        else:
            earned = torch.add(self.atol, torch.clamp(size, progress.scale, progress.home), alpha=self.rtol)
            within = torch.maximum(earned, self.rounding * size)
        if state.floor is not None:
            within = torch.maximum(within, state.floor)
        return within.nan_to_num(nan=torch.nan, posinf=torch.nan)

    def begin(
        self, problem: Problem, state: State, active: Tensor | None, check: bool, home: Tensor | None = None
    ) -> Progress:
        norm, scale = state.norm, length(problem.b)
        steps = torch.zeros_like(norm, dtype=torch.int32)
        if home is None and self.can_leave:
            largest = torch.maximum(torch.maximum(scale, length(state.w)), self.ratio * norm)
            # What is not finite is no home; nor is it one that can be left.
            home = (self.far * largest).nan_to_num(nan=torch.inf)
        progress = Progress(state.w, norm, steps, steps, norm, norm, norm, steps, scale, home, norm, norm)
        progress.tolerance = self.tolerance(progress, state)
        converged = norm <= progress.tolerance
        if check and self._unanimous(progress, converged):
            return progress
        progress.limit = self.divergence * torch.maximum(norm, progress.tolerance)
        progress.status = self._verdict(progress, converged, state)
        if active is not None:
            progress.status = progress.status.masked_fill(~active, Status.CONVERGED.value)
        return progress

    def update(self, progress: Progress, state: State, running: Tensor, check: bool) -> None:
        norm = state.norm
        progress.steps = progress.steps + running
        progress.last, progress.tolerance = norm, self.tolerance(progress, state)
        converged = norm <= progress.tolerance
        # Finished samples have not moved, so that this is true of all if it is of those that were running.
        if check and self._unanimous(progress, converged):
            progress.value, progress.residual = state.w, norm
            return
        if self.last_counts:
            progress.value, progress.residual = state.w, norm
        else:
            # The status is a fact about the value: who converges keeps the iterate that did.
            keep = running & (converged | (norm < progress.residual))
            progress.value = select(keep, state.w, progress.value)
            progress.residual = torch.where(keep, norm, progress.residual)
        progress.status = torch.where(running, self._verdict(progress, converged, state), progress.status)

    def _unanimous(self, progress: Progress, converged: Tensor) -> bool:
        """Whether all samples have converged near home, which is how most solves end: nothing is left to judge then."""
        near = converged if progress.home is None else converged & (progress.size <= progress.home)
        progress.unanimous = progress.all_converged = progress.finished = all_true(near)
        if progress.unanimous:
            progress.status = torch.full_like(progress.status, Status.CONVERGED.value)
        return progress.unanimous

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
        if not (self.fixed or progress.finished):
            progress.check()
        if progress.all_converged:
            return
        status = progress.status.masked_fill(progress.running, Status.MAX_STEPS.value)
        if self.fixed and progress.home is not None:
            # Without a check the error cannot be estimated.
            status = status.masked_fill(progress.far, Status.DIVERGED.value)
        lost = (status == Status.DIVERGED.value) & ~(progress.last.isfinite() & progress.tolerance.isfinite())
        progress.status = status.masked_fill(lost, Status.NON_FINITE.value)
