"""The fixed-point iteration for samples that contract quickly, in as few operations as possible.

Most residual layers contract: tau F' is small. They need a handful of steps of the plain fixed point, and the cost of
a solve is then that of everything else: safeguards, histories, statuses. This loop has none of them. It hands every
sample that contracts slowly, or not at all, to the next solver of the plan.
"""

import math

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence, Progress
from resolvent.equation.norms import length, put, rms, select, take
from resolvent.equation.prediction import PredictedLast
from resolvent.equation.problem import Problem
from resolvent.equation.secants import Secants
from resolvent.equation.solver import Attempt, State
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.torch_func import any_true, transforming

# A sample continues while its steps reduce the residual to this fraction on average. Slower ones gain from other
# methods, the sooner, the more an evaluation costs beside everything else: for small systems the larger fraction holds.
_QUICKLY, _QUICKLY_IF_SMALL = 0.4, 0.7

MOST_ACCELERATED = 1024
"""Up to this many unknowns, later steps are accelerated, and slower samples continue."""

MIN_SIZE_TO_COMPACT = 1 << 14
"""With fewer numbers in the batch, gathering the unfinished samples costs more than evaluating the finished ones."""

# Secants are used from this step on. Up to so many unknowns they cost as much as half an evaluation, and come later,
# when most solves are done.
_ACCELERATED_FROM, _ACCELERATED_FROM_IF_FEW, _FEW = 4, 8, 200


def may_contract(problem: Problem, stopping: StoppingRule) -> bool:
    """Whether the loop can run: it makes as many steps as it needs, and autograd must not record them. In half
    precision the tolerance is so wide that methods which overshoot it are worth their price."""
    half = problem.precision.itemsize < 4
    return not (half or stopping.fixed or torch.is_grad_enabled() or transforming())


def contract(problem: Problem, attempt: Attempt, stopping: StoppingRule, w: Tensor) -> Progress:
    """Iterates w <- g(w), the map of `Picard`, for each sample while it contracts quickly. Later steps are accelerated.

    Samples that converged have the same status as in `iterate`. The others are marked as out of steps.
    """
    checks, last = stopping.checks(w.device), PredictedLast(problem)
    convergence = Convergence(problem, attempt.solver, stopping)
    size = rms if convergence.parts is None else convergence.parts.norm
    r, image = last.plain.defect_and_image(w)
    norm, scale = size(r), length(problem.b)
    progress = convergence.first(problem, w, norm, scale)
    within = _Tolerance(problem, convergence, progress)
    tolerance = within.at(w)
    going = norm > tolerance
    if problem.contracting is not None:
        going = going & problem.contracting
    steps, secants = torch.zeros_like(going, dtype=torch.int32), Secants()
    rate = attempt.rate or (_QUICKLY if problem.size > MOST_ACCELERATED else _QUICKLY_IF_SMALL)
    accelerated_from = first_accelerated(problem.size)
    pace = attempt.lead * norm
    before = scale / convergence.ratio  # Beside b, the first residual hints at the rate.
    may_compact = convergence.parts is None and not within.follows and _may_compact(problem, w)
    for step in range(1, 1 + (stopping.limit or attempt.max_steps or attempt.solver.max_steps)):
        count = int(going.count_nonzero()) if checks(step - 1) else None
        if count == 0:
            break
        moved = w + problem.precondition(r) if image is None else image
        if step >= accelerated_from:
            moved = secants.next(moved - w if image is None else r, moved)
        if may_compact and count is not None and 2 * count <= len(going):
            before = norm
            w, r, image, norm = _step_of_some(problem, going.nonzero().squeeze(1), moved, w, r, norm)
        else:
            w = moved if count == going.numel() else select(going, moved, w)
            r, image = last.problem_at(step, before, norm, tolerance).defect_and_image(w)
            before, norm, tolerance = norm, size(r), within.at(w)
        steps, pace = steps + going, rate * pace
        going = going & (norm > tolerance) & (norm < pace)
    convergence.update(last.plain, progress, State(w=w, norm=norm, r=r), torch.ones_like(going), checks(0))
    progress.steps = steps
    convergence.end(progress)
    return progress


def first_accelerated(unknowns: int) -> float:
    """The number of the step from which the fixed point is accelerated."""
    if unknowns > MOST_ACCELERATED:
        return math.inf
    return _ACCELERATED_FROM_IF_FEW if unknowns <= _FEW else _ACCELERATED_FROM


class _Tolerance:
    """The tolerance at which samples stop. It is relative to |b|, and so holds whatever the size of the solution. Where
    b is zero, as in an equilibrium model, it follows the size of the iterate."""

    def __init__(self, problem: Problem, convergence: Convergence, progress: Progress) -> None:
        self._convergence, self._progress = convergence, progress
        self._of_b, self._resting = convergence.strictest(progress.scale), progress.scale == 0
        self.follows = not problem.linear and any_true(self._resting)

    def at(self, w: Tensor) -> Tensor:
        if not self.follows:
            return self._of_b
        self._convergence.measure(self._progress, w)
        return torch.where(self._resting, self._progress.earned, self._of_b)


def _may_compact(problem: Problem, w: Tensor) -> bool:
    """Whether evaluations of the unfinished samples alone pay: without a graph, which would have to hold all."""
    alone = problem.rowwise and not problem.linear and problem.without_graph() is problem
    return alone and w.is_cpu and w.numel() >= MIN_SIZE_TO_COMPACT


def _step_of_some(
    problem: Problem, rows: Tensor, moved: Tensor, w: Tensor, r: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The step of the samples `rows` alone: the iterates of all samples, their defects, images and norms. Images are
    those of the `rows`; the others do not move any more."""
    iterates = take(moved, rows)
    defects, images = problem.take(rows).defect_and_image(iterates)
    image = None if images is None else put(moved, rows, images)
    return put(w, rows, iterates), put(r, rows, defects), image, put(norm, rows, rms(defects))
