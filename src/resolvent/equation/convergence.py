"""Convergence: the status of every sample after each step.

A sample has converged when its residual is within the tolerance of `Stopping`, which is relative to max(|b|, |w|). The
size of w counts because rounding alone leaves a residual of that relative size. It must not be *earned*: where an
equation has no solution, w can run away until any residual is small beside it, and until b is lost in the rounding of
the sum. So there are two ways to converge:

1. The residual is small beside what the solve began with, the largest of b, the first guess and the first residual, and
   w has not grown so much beyond it that rounding could have hidden b.
2. The residual is at the rounding of w, and the error that follows from it, A^{-1} (r + rounding) with
   A = I - tau F'(w), is at most half of w. That costs a linear solve, and is asked where the first way is closed.

At a pole A is singular, the error is infinite, and the sample has diverged. A large solution that is well conditioned
passes: with |A^{-1}| eps below one half, rounding leaves an error of less than half of w in every precision. The linear
systems of the backward pass are judged alike.
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
# Beyond so many times what the solve began with, an iterate is far from home: rounding could have hidden b. Where the
# tolerance is not much above the rounding, that is sooner.
_FAR, _LEAST_FAR = 10.0, 2.0
# Where the tolerance is not reached, a residual of this many roundings of the size of w is as good as it gets.
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
        natural: the largest length among b, the first guess and the first residual, NaN where it is not finite; None
            for a rough inner solve.
        horizon: the length beyond which an iterate is far from home.
        size: the length of the last iterate.
        earned: the tolerance for the last residual that needs no second opinion.
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
    natural: Tensor | None
    horizon: Tensor
    size: Tensor
    earned: Tensor
    unanimous: bool = False
    all_converged: bool = False
    finished: bool = False

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING.value

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
        self.far_from = min(_FAR, max(_LEAST_FAR, 0.5 * relative / torch.finfo(problem.precision).eps))
        self.patience = max(stopping.patience, solver.patience)
        self.divergence = stopping.divergence
        self.fixed = stopping.fixed
        # Of a fixed number of steps the last iterate is taken, whose evaluation is known to be the last one.
        self.last_counts = solver.monotone or stopping.fixed

    def measure(self, progress: Progress, w: Tensor) -> None:
        """Sets the size of an iterate, and the tolerance for its residual that it needs no second opinion for."""
        progress.size = length(w)
        if self.own is not None:
            progress.earned = self.own * progress.scale + self.atol
            return
        assert progress.natural is not None
        counted = torch.clamp(progress.size, progress.scale, progress.natural)
        progress.earned = torch.add(self.atol, counted, alpha=self.rtol)

    def tolerance(self, progress: Progress, floor: Tensor | None = None) -> Tensor:
        """For the residual of the iterate that was measured. NaN where it would be infinite: nothing is within that."""
        within = progress.earned
        if self.own is None:
            within = torch.maximum(within, self.rounding * progress.size)
        if floor is not None:
            within = torch.maximum(within, floor)
        return within.nan_to_num(nan=torch.nan, posinf=torch.nan)

    def far(self, progress: Progress) -> Tensor:
        """(batch,), samples whose claim to have converged needs a second opinion."""
        claimed = progress.status == Status.CONVERGED.value
        if progress.natural is None:
            return torch.zeros_like(claimed)
        self.measure(progress, progress.value)
        return claimed & ~self._near(progress, progress.residual)

    def _near(self, progress: Progress, norm: Tensor) -> Tensor:
        near = norm <= progress.earned
        return near if progress.natural is None else near & (progress.size <= progress.horizon)

    def begin(
        self, problem: Problem, state: State, active: Tensor | None, check: bool, natural: Tensor | None = None
    ) -> Progress:
        norm, scale = state.norm, length(problem.b)
        steps = torch.zeros_like(norm, dtype=torch.int32)
        if natural is None and self.own is None:
            natural = torch.maximum(torch.maximum(scale, length(state.w)), self.ratio * norm)
            # Everything is within an infinite tolerance, and nothing within NaN.
            natural = natural.nan_to_num(nan=torch.nan, posinf=torch.nan)
        horizon = norm if natural is None else self.far_from * natural
        progress = Progress(state.w, norm, steps, steps, norm, norm, norm, steps, scale, natural, horizon, norm, norm)
        self.measure(progress, state.w)
        if check and self._unanimous(progress, norm):
            return progress
        tolerance = self.tolerance(progress, state.floor)
        progress.limit = self.divergence * torch.maximum(norm, tolerance)
        progress.status = self._verdict(progress, norm <= tolerance, state)
        if active is not None:
            progress.status = progress.status.masked_fill(~active, Status.CONVERGED.value)
        return progress

    def update(self, progress: Progress, state: State, running: Tensor, check: bool) -> None:
        norm = state.norm
        progress.steps = progress.steps + running
        progress.last = norm
        self.measure(progress, state.w)
        # Finished samples have not moved, so that this is true of all if it is of those that were running.
        if check and self._unanimous(progress, norm):
            progress.value, progress.residual = state.w, norm
            return
        converged = norm <= self.tolerance(progress, state.floor)
        if self.last_counts:
            progress.value, progress.residual = state.w, norm
        else:
            # The status is a fact about the value: who converges keeps the iterate that did.
            keep = running & (converged | (norm < progress.residual))
            progress.value = select(keep, state.w, progress.value)
            progress.residual = torch.where(keep, norm, progress.residual)
        progress.status = torch.where(running, self._verdict(progress, converged, state), progress.status)

    def _unanimous(self, progress: Progress, norm: Tensor) -> bool:
        """Whether all samples have converged near home, which is how most solves end: nothing is left to judge then."""
        progress.unanimous = progress.all_converged = progress.finished = all_true(self._near(progress, norm))
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
        if self.fixed:
            # There is no second opinion without a check.
            progress.status = status
            status = status.masked_fill(self.far(progress), Status.DIVERGED.value)
        lost = (status == Status.DIVERGED.value) & ~(progress.last.isfinite() & progress.earned.isfinite())
        progress.status = status.masked_fill(lost, Status.NON_FINITE.value)
