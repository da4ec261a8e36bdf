"""The fixed-point iteration for samples that contract quickly, in as few operations as possible.

Most residual layers contract: tau F' is small. They need a handful of steps of the plain fixed point, and the cost of
a solve is then that of everything else: safeguards, histories, statuses. This loop has none of them. It hands every
sample that contracts slowly, or not at all, to the next solver of the plan.
"""

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence, Progress
from resolvent.equation.norms import rms, select
from resolvent.equation.prediction import PredictedLast
from resolvent.equation.problem import Problem
from resolvent.equation.solver import Attempt, State
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.torch_func import transforming

# A sample continues while every step reduces its residual to this fraction. Slower ones gain from other methods, the
# sooner, the more an evaluation costs beside everything else: up to this many unknowns the larger fraction holds.
_QUICKLY, _QUICKLY_IF_SMALL, _SMALL = 0.4, 0.7, 1024


def may_contract(problem: Problem, stopping: StoppingRule) -> bool:
    """Whether the loop can run: it makes as many steps as it needs, and autograd must not record them. In half
    precision the tolerance is so wide that methods which overshoot it are worth their price."""
    half = problem.precision.itemsize < 4
    return not (half or stopping.fixed or torch.is_grad_enabled() or transforming())


def contract(problem: Problem, attempt: Attempt, stopping: StoppingRule, w: Tensor) -> Progress:
    """Iterates w <- g(w), the map of `Picard`, for each sample while it contracts quickly.

    Samples that converged have the same status as in `iterate`. The others are marked as out of steps.
    """
    checks = stopping.checks(w.device)
    convergence = Convergence(problem, attempt.solver, stopping)
    last = PredictedLast(problem)
    r, image = last.plain.defect_and_image(w)
    norm = rms(r)
    progress = convergence.begin(last.plain, State(w=w, norm=norm), None, checks(0))
    if progress.finished:
        return progress
    begun, tolerance = progress.running, convergence.strictest(progress)
    if problem.contracting is not None:
        begun = begun & problem.contracting
    going = begun
    quickly = attempt.rate or (_QUICKLY_IF_SMALL if problem.size <= _SMALL else _QUICKLY)
    all_going = False  # Whether all samples are known to continue.
    before = progress.scale / convergence.ratio  # Beside b, the first residual hints at the rate.
    for step in range(1, 1 + (stopping.limit or attempt.max_steps or attempt.solver.max_steps)):
        moved = w + problem.precondition(r) if image is None else image
        w = moved if all_going else select(going, moved, w)
        at = last.problem_at(step, before, norm, tolerance)
        r, image = at.defect_and_image(w)
        before, norm = norm, rms(r)
        if step > 1:  # `update` counts the first step.
            progress.steps = progress.steps + going
        going = going & (norm > tolerance) & (norm < quickly * before)
        count = int(going.sum()) if checks(step) else None
        if count == 0:
            break
        all_going = count == going.numel()
    convergence.update(last.plain, progress, State(w=w, norm=norm), begun, checks(0))
    convergence.end(progress)
    return progress
