"""Convergence: the status of every sample after each step.

A sample has converged when its residual is within the tolerance of `Stopping`, which is relative to max(|b|, |w|). The
size of w counts because rounding alone leaves a residual of that relative size. But a growing w must not make a sample
converge: if the equation has no solution, w can grow until any residual is small beside it and b is lost in rounding.
So there are two ways to converge:

1. The residual is small compared with the start of the solve (the largest of b, the first guess and the first
   residual), and w has not grown so far beyond it that rounding could hide b.
2. The residual is at the rounding of w, and the error that follows from it, A^{-1} (r + rounding) with
   A = I - tau F'(w), is at most half of w. This costs a linear solve, and is tested only if the first way fails. A
   sample that fails it too, but is not far from the start, is solved further until the first way holds.

At a pole A is singular, the error is infinite, and the sample has diverged. A large solution that is well conditioned
passes: with |A^{-1}| eps below one half, rounding leaves an error of less than half of w in every precision. The same
rules apply to the linear systems of the backward pass.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.norms import extremes, length, select
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Status
from resolvent.equation.solver import Solver, State
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.torch_func import all_true, any_true, whole

# The residual must fall below this fraction of its reference to count as progress.
_PROGRESS = 0.999
# A residual within the tolerance is not at its rounding as long as a step reduces it to this fraction.
_FALLS = 0.5
# An iterate is far from the start, where rounding could hide b, when it is larger than the start by this factor. The
# factor is smaller, down to the second number, when the tolerance is close to rounding.
FAR, _LEAST_FAR = 10.0, 2.0
# A residual of this many roundings of the size of w cannot be improved, and is accepted.
_ROUNDINGS = 4.0


@dataclass(kw_only=True)
class Reached:
    """Where an attempt has left every sample. All tensors have one row per sample.

    Attributes:
        value, residual: the best iterate, and its residual; the last one if the sample has converged.
        status: `Status` codes; a sample whose residual is not finite counts as diverged until the end.
        steps: the number of steps of each sample.
        natural: the largest length among b, the first guess and the first residual, NaN where it is not finite; None
            for a rough inner solve.
        all_converged: whether all samples are known to have converged.
        rounds: the number of steps of the batch, if it is known.
    """

    value: Tensor
    residual: Tensor
    status: Tensor
    steps: Tensor
    natural: Tensor | None
    all_converged: bool = False
    rounds: int | None = None


@dataclass(kw_only=True)
class Progress(Reached):
    """The progress of every sample while a solver runs.

    Attributes:
        last: the residual of the last iterate.
        limit: the residual beyond which the sample has diverged.
        reference: the residual that progress is measured against.
        idle: steps since the last progress.
        scale: the length of b.
        horizon: the length beyond which an iterate is far from the start.
        size: the length of the last iterate.
        earned: the tolerance below which the last residual needs no error estimate.
        unanimous: whether one check found all samples converged, and none far from the start.
        finished: whether all samples are known to be done, converged or not.
    """

    last: Tensor
    limit: Tensor
    reference: Tensor
    idle: Tensor
    scale: Tensor
    horizon: Tensor
    size: Tensor
    earned: Tensor
    unanimous: bool = False
    finished: bool = False

    @property
    def running(self) -> Tensor:
        return self.status.logical_not()  # RUNNING is zero, and a comparison takes twice as long.

    def check(self) -> None:
        """Updates `finished` and `all_converged`, with one wait for the device."""
        if self.status.is_cpu and any_true(self.running):  # On the CPU the cheaper question comes first.
            self.finished = self.all_converged = False
            return
        least, greatest = torch.stack(whole(self.status).aminmax()).tolist()
        self.finished = least > Status.RUNNING.value
        self.all_converged = least == greatest == Status.CONVERGED.value


class Convergence:
    """Decides the status of every sample after every step. If `rtol` (batch,) is given, it replaces that of `Stopping`
    and is relative to |b|.

    On small systems these decisions cost as much as the solver, so they use as few operations as possible.
    """

    def __init__(self, problem: Problem, solver: Solver, stopping: StoppingRule, rtol: Tensor | None = None) -> None:
        # A length is a root mean square times this. Comparing lengths saves a division.
        ratio = math.sqrt(max(problem.size, 1))
        self.ratio = ratio
        self.own = None if rtol is None else rtol / ratio
        relative = stopping.relative(problem.precision)
        self.rtol = relative / ratio
        # A cotangent may be so small that a fraction of it is zero.
        atol = torch.finfo(problem.b.dtype).tiny if problem.linear else stopping.absolute(problem.precision)
        self.atol_number, self.atol = atol, torch.full((), atol, dtype=problem.b.dtype)
        self.parts = None if problem.linear else stopping.parts(problem.b, problem.precision)
        self.rounding = min(relative, _ROUNDINGS * torch.finfo(problem.precision).eps) / ratio
        self.far_from = min(FAR, max(_LEAST_FAR, 0.5 * relative / torch.finfo(problem.precision).eps))
        self.patience = max(stopping.patience, solver.patience)
        self.divergence = stopping.divergence
        self.fixed, self.at_once = stopping.fixed, solver.at_once
        # With fixed steps the result is the last iterate, and its evaluation is the last one.
        self.last_counts = solver.monotone or stopping.fixed

    def measure(self, progress: Progress, w: Tensor) -> None:
        """Sets the size of an iterate, and the tolerance below which its residual needs no error estimate."""
        self._measured(progress, length(w))

    def _measured(self, progress: Progress, size: Tensor) -> None:
        progress.size = size
        if self.own is not None:
            progress.earned = self.own * progress.scale + self.atol
            return
        assert progress.natural is not None
        counted = torch.clamp(progress.size, progress.scale, progress.natural)
        progress.earned = torch.add(self.atol, counted, alpha=self.rtol)

    def tolerance(self, progress: Progress, floor: Tensor | None = None) -> Tensor:
        """The tolerance for the residual of the last measured iterate. NaN where it would be infinite, so that no
        residual is within it."""
        within = progress.earned
        if self.own is None:
            within = torch.maximum(within, self.rounding * progress.size)
        if floor is not None:
            within = torch.maximum(within, floor)
        return within.nan_to_num(nan=torch.nan, posinf=torch.nan)

    def strictest(self, scale: Tensor) -> Tensor:
        """The tolerance for a residual that is small enough whatever the size of the iterate; `scale` is |b|."""
        return torch.add(self.atol, scale, alpha=self.rtol)

    def strictest_of(self, scale: float) -> float:
        """The same for one |b|."""
        return self.atol_number + self.rtol * scale

    def far(self, progress: Progress) -> Tensor:
        """Mask (batch,) of converged samples that need an error estimate."""
        claimed = progress.status == Status.CONVERGED.value
        if progress.natural is None:
            return torch.zeros_like(claimed)
        self.measure(progress, progress.value)
        return claimed & ~self._near(progress, progress.residual)

    def _near(self, progress: Progress, norm: Tensor) -> Tensor:
        near = norm <= progress.earned
        return near if progress.natural is None else near & (progress.size <= progress.horizon)

    def first(
        self, problem: Problem, w: Tensor, norm: Tensor, scale: Tensor, natural: Tensor | None = None
    ) -> Progress:
        """The progress at the first guess w, before any judgement; `scale` is |b|."""
        size = scale if w is problem.b else length(w)
        idle = torch.zeros_like(norm, dtype=torch.int32)
        steps = torch.ones_like(idle) if self.at_once else idle
        if natural is None and self.own is None:
            natural = scale if self.at_once else torch.maximum(torch.maximum(scale, size), self.ratio * norm)
            # Every residual is within an infinite tolerance, and none within NaN.
            natural = natural.nan_to_num(nan=torch.nan, posinf=torch.nan)
        horizon = norm if natural is None else self.far_from * natural
        limit = self.divergence * norm
        return Progress(
            value=w,
            residual=norm,
            status=idle,
            steps=steps,
            natural=natural,
            last=norm,
            limit=limit,
            reference=norm,
            idle=idle,
            scale=scale,
            horizon=horizon,
            size=size,
            earned=norm,
        )

    def begin(
        self,
        problem: Problem,
        state: State,
        active: Tensor | None,
        check: bool,
        natural: Tensor | None = None,
        steps_first: bool = False,
    ) -> Progress:
        """The progress at the first state. With `steps_first` only samples without a residual have converged there."""
        norm, parts = state.norm, self.parts
        steps_first = steps_first and not self.at_once
        progress = self.first(problem, state.w, norm, length(problem.b), natural)
        self._measured(progress, progress.size)
        if check and natural is None and active is None and self._all_run(problem, progress, state):
            return progress
        near = self._near(progress, norm) if check and not steps_first else None
        if near is not None and all_true(near) and (parts is None or all_true(parts.within(near, problem, state))):
            self._agree(progress)
            return progress
        tolerance = self.tolerance(progress, state.floor)
        progress.limit = self.divergence * torch.maximum(norm, tolerance)
        within = (norm <= tolerance) & (norm == 0) if steps_first else norm <= tolerance
        converged = within if parts is None else parts.within(within, problem, state)
        progress.status = self._verdict(progress, converged, state)
        if active is not None:
            progress.status = progress.status.masked_fill(~active, Status.CONVERGED.value)
        return progress

    def _all_run(self, problem: Problem, progress: Progress, state: State) -> bool:
        """Whether all samples are known to be above the tolerance in the first state, and none has failed. Most solves
        begin like this, and need no further test. As w is not larger than the start, `earned` is the tolerance."""
        if self.at_once or self.own is not None or state.floor is not None or state.broken is not None:
            return False
        if not problem.can_read(state.norm):
            return False
        least, most = extremes(state.norm / progress.earned)
        return least > 1 and most < math.inf

    def update(self, problem: Problem, progress: Progress, state: State, running: Tensor, check: bool) -> None:
        norm, before = state.norm, progress.last
        progress.steps = progress.steps + running
        progress.last = norm
        self.measure(progress, state.w)
        # Finished samples have not moved, so this holds for all samples if it holds for the running ones.
        parts = self.parts
        near = self._near(progress, norm) if check else None
        if near is not None and all_true(near) and (parts is None or all_true(parts.within(near, problem, state))):
            progress.value, progress.residual = state.w, norm
            self._agree(progress)
            return
        within = norm <= self.tolerance(progress, state.floor)
        converged = within if parts is None else parts.within(within, problem, state)
        if self.last_counts:
            progress.value, progress.residual = state.w, norm
        else:
            # The status must describe the value: a converged sample keeps the iterate that converged.
            keep = running & (converged | (norm < progress.residual))
            progress.value = select(keep, state.w, progress.value)
            progress.residual = torch.where(keep, norm, progress.residual)
        verdict = self._verdict(progress, converged, state)
        if parts is not None and parts.final:
            # The whole is at its rounding: further steps do not change what it leaves of a part.
            verdict = verdict.masked_fill(within & ~converged & (norm > _FALLS * before), Status.STALLED.value)
        progress.status = torch.where(running, verdict, progress.status)

    def _agree(self, progress: Progress) -> None:
        """Marks all samples as converged near the start. Most solves end like this, and need no further test."""
        progress.unanimous = progress.all_converged = progress.finished = True
        progress.status = torch.full_like(progress.status, Status.CONVERGED.value)

    def _verdict(self, progress: Progress, converged: Tensor, state: State) -> Tensor:
        """The new status of samples that were running."""
        # From the weakest reason to the strongest: a later one overrules. Strictly less, as a limit may be infinite.
        verdict = torch.where(state.norm < progress.limit, progress.status, Status.DIVERGED.value)
        if state.broken is not None:
            verdict = verdict.masked_fill(state.broken, Status.BREAKDOWN.value)
        return verdict.masked_fill(converged, Status.CONVERGED.value)

    def give_up_stalled(self, progress: Progress) -> None:
        """Marks samples as stalled that made no progress for `patience` steps."""
        advanced = progress.last < _PROGRESS * progress.reference
        progress.reference = torch.where(advanced, progress.last, progress.reference)
        progress.idle = (progress.idle + 1).masked_fill(advanced, 0)
        stalled = progress.running & (progress.idle >= self.patience)
        progress.status = progress.status.masked_fill(stalled, Status.STALLED.value)

    def end(self, progress: Progress) -> None:
        """Marks running samples as out of steps, and diverged samples that are not finite as such."""
        if not (self.fixed or progress.finished):
            progress.check()
        if progress.all_converged:
            return
        status = progress.status.masked_fill(progress.running, Status.MAX_STEPS.value)
        if self.fixed:
            # Fixed steps make no error estimate.
            progress.status = status
            status = status.masked_fill(self.far(progress), Status.DIVERGED.value)
        lost = (status == Status.DIVERGED.value) & ~(progress.last.isfinite() & progress.earned.isfinite())
        progress.status = status.masked_fill(lost, Status.NON_FINITE.value)
