"""A fixed number of steps of the fixed point, with no question to the device: for passes that are recorded."""

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence
from resolvent.equation.directions import Directions, PlainDirections
from resolvent.equation.fused import FusedDirections, can_be_fused
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Solution
from resolvent.equation.solver import Attempt, Plan, Solver
from resolvent.equation.stopping import FixedSteps, StoppingRule


def sums_in_double(problem: Problem, plan: Plan, stopping: StoppingRule) -> bool:
    """Whether the solve sums squares in double precision, whatever that of the problem."""
    return isinstance(stopping, FixedSteps) and can_be_fused(problem) and fixed_point_serves(plan.attempts(problem))


def fixed_point_serves(attempts: tuple[Attempt, ...]) -> bool:
    """Whether a fixed number of steps are those of the fixed point, which the plan tries first. Newton's method and
    direct solves, which follow for few unknowns, need fewer."""
    if not attempts[0].quick or torch.is_grad_enabled():
        return False
    return len(attempts) == 1 or not (attempts[1].solver.has_matrix or attempts[1].solver.at_once)


def iterate_fixed_point(problem: Problem, solver: Solver, stopping: FixedSteps, w: Tensor) -> Solution:
    """Makes the steps for all samples. The last evaluation is at the result and gives its residual. Its graph, or its
    gradients of weights, serve the backward pass: they are recorded there alone."""
    directions = _directions(problem, Convergence(problem, solver, stopping), stopping.steps)
    plain = problem.without_graph()
    y, tau = plain.increment(w)
    for step in range(1, stopping.steps + 1):
        w = directions.next(w, y, tau)
        y, tau = (problem if step == stopping.steps else plain).increment(w)
    status, residual = directions.end(w, y, tau)
    return Solution(
        value=w,
        status=status,
        residual=residual,
        steps=torch.full_like(status, stopping.steps),
        solver_index=torch.zeros_like(status),
        solvers=(solver,),
        work=problem.work,
        linear=problem.linear,
        quick=True,
    )


def _directions(problem: Problem, convergence: Convergence, steps: int) -> Directions:
    if can_be_fused(problem):
        return FusedDirections(problem, convergence, steps)
    return PlainDirections(problem, convergence)
