"""From a solution to its derivatives: A at the solution, and what F closes over there."""

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from resolvent.equation.closed import Edge, closed_tensors
from resolvent.equation.evaluation import Evaluation, LastEvaluation
from resolvent.equation.gradients import Closed
from resolvent.equation.implicit_function import InverseMap
from resolvent.equation.linearization import Linearization, evaluate_with_matrix
from resolvent.equation.problem import NonlinearProblem, changed
from resolvent.equation.solution import Solution
from resolvent.equation.solution_function import attach_solution


def linearize(
    problem: NonlinearProblem, solution: Solution, last: LastEvaluation | None, compare: bool
) -> Linearization:
    """A at the solution. The last evaluation of the solve is used if it was there; `compare` as for its `take`."""
    w, matrix, detached = solution.value.detach(), solution.matrix, problem.detach()
    evaluation = None if last is None else last.take(w, compare)
    if evaluation is None and matrix is None and last is not None and _by_newton(problem, solution):
        with torch.no_grad():
            matrix = evaluate_with_matrix(problem.detach(last), w)[1]
        evaluation = last.take(w, compare)
    evaluation = detached.evaluate_with_graph(w) if evaluation is None else evaluation
    linearization = Linearization(detached, w, matrix, evaluation)
    linearization.contracting, linearization.expected_steps = _contracted(solution), solution.rounds
    return linearization


def _contracted(solution: Solution) -> Tensor | None:
    """Mask (batch,) of the samples that the quick attempt solved; None for all, or if there was none."""
    if not solution.quick or len(solution.solvers) == 1:
        return None
    return solution.solver_index == 0


def _by_newton(problem: NonlinearProblem, solution: Solution) -> bool:
    """Whether Newton's method solved samples that the quick attempt did not. Then the backward pass is solved directly
    too, and one evaluation gives the matrices of all samples."""
    return problem.rowwise and solution.quick and any(solver.has_matrix for solver in solution.solvers[1:])


def attach_named(
    problem: NonlinearProblem, inverse: InverseMap, evaluation: Evaluation, image: Tensor, edges: list[Edge], w: Tensor
) -> Tensor | None:
    """The solution w with first derivatives, if all tensors that F closes over are found by name, else None."""
    tau = problem.tau
    learned = isinstance(tau, Tensor) and tau.requires_grad
    tensors = closed_tensors(edges, problem.function, *([tau] if isinstance(tau, Tensor) else []))
    if tensors is None:
        return None
    if not tensors:
        return attach_solution(inverse, w, problem.b, None, (), evaluation.like)
    end = get_gradient_edge(changed(problem, b=problem.b.detach()).step_of(image)) if learned else evaluation.end
    assert end is not None
    closed = Closed(tensors, evaluation.start, end, None if learned else tau)
    return attach_solution(inverse, w, problem.b, closed, tuple(tensors.values()), evaluation.like)
