"""The fixed-point iteration for samples that contract, as in `contraction`, on a GPU.

There an operation on a small tensor takes as long as one on a large one, and a question waits for everything that was
asked before. So a step is made by one or two kernels, every step is accelerated, and one question a step tells whether
all samples are done, whether they have converged, and how many steps are left.
"""

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence, Reached
from resolvent.equation.fused import FusedDirections, Report, Verdict, can_be_fused, read
from resolvent.equation.norms import per_sample
from resolvent.equation.prediction import MARGIN_IF_LINEAR, steps_left
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Status
from resolvent.equation.solver import Attempt
from resolvent.equation.stopping import StoppingRule

# As accelerated samples contract faster the longer they iterate, they are given more time than those of `contraction`.
_RATE, _LEAD = 0.7, 6.0
# A step takes longer than a question, so that there is one after every step, as on the CPU.
_SOON = torch.device("cpu")


def contracts_on_device(problem: Problem, stopping: StoppingRule) -> bool:
    """Whether the loop can run: it makes as many steps as it needs, and autograd must not record them."""
    if stopping.fixed or torch.is_grad_enabled() or not can_be_fused(problem):
        return False
    return problem.linear or stopping.parts(problem.b, problem.precision) is None


def contract_on_device(problem: Problem, attempt: Attempt, stopping: StoppingRule, w: Tensor) -> Reached:
    """Iterates for each sample while it contracts; every sample makes at least one step.

    Samples that converged have the same status as in `iterate`. The others are handed to the next solver.
    """
    convergence, checks = Convergence(problem, attempt.solver, stopping), stopping.checks(_SOON)
    limit = stopping.limit or attempt.max_steps or attempt.solver.max_steps
    accelerated = attempt.memory > 0  # By more changes than here, so that its limits are wider.
    rate, pace = (_RATE, _LEAD) if accelerated else (attempt.rate, max(attempt.lead, _LEAD))
    batch = w.shape[0]
    # One tensor for all counts, in multiples of four, for which the kernels are compiled.
    rows = -(-batch // 4)
    zeros = torch.zeros(2 * rows + limit, 4, dtype=torch.int32, device=w.device)
    done, steps, reports = zeros[:rows].view(-1)[:batch], zeros[rows : 2 * rows].view(-1)[:batch], zeros[2 * rows :]
    if problem.contracting is not None:
        done.copy_(~problem.contracting)
    directions = FusedDirections(problem, convergence, limit, done)
    plain, first = problem.without_graph(), w
    y, tau = plain.increment(w)
    report: Report | None = None
    moved: Tensor | None = None
    residual = w.new_empty(batch)
    for step in range(1, limit + 1):
        w = directions.next(w, y, tau) if moved is None else moved
        y, tau = (problem if _may_be_last(problem, step, report) else plain).increment(w)
        pace *= rate
        moved = directions.judge(w, y, tau, Verdict(steps, reports[step - 1], residual, pace, not problem.linear))
        report = read(reports[step - 1]) if checks(step) else None
        if report is not None and report.going == 0:
            break
    converged = report is not None and report.converged == batch
    if converged:
        status = torch.full_like(steps, Status.CONVERGED.value)
    else:
        status, residual = directions.verdict(Status.MAX_STEPS)
    reached = Reached(value=w, residual=residual, status=status, steps=steps, natural=None, rounds=step)
    reached.all_converged = converged
    if not converged:
        reached.natural = directions.natural
        _return_to_better(reached, first, directions.first_residual)
    return reached


def _may_be_last(problem: Problem, step: int, report: Report | None) -> bool:
    """Whether the step may be the last one, so that its evaluation should serve the backward pass.

    To record a graph takes no time: every step of a nonlinear problem does. Gradients of weights take as long as the
    product they come with, so they wait until one step is left.
    """
    if not problem.linear:
        return True
    if report is None:
        return step == problem.expected_steps
    return steps_left(report.before, report.now) <= MARGIN_IF_LINEAR


def _return_to_better(reached: Reached, first: Tensor, residual: Tensor) -> None:
    """Returns samples that have not converged to the first guess, if its residual is smaller."""
    better = (reached.status == Status.CONVERGED.value) | (reached.residual < residual)
    reached.value = torch.where(per_sample(better, first), reached.value, first)
    reached.residual = torch.where(better, reached.residual, residual)
