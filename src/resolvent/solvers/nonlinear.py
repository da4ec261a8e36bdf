"""What the nonlinear solvers have in common."""

from resolvent.core.problem import Problem
from resolvent.core.solver import Solver
from resolvent.solvers.dense import DenseLU
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.linear import DENSE_LIMIT


class NonlinearSolver(Solver):
    """A method for w = b + tau F(w)."""

    def linear_solver(self, problem: Problem) -> Solver:
        return DenseLU() if problem.size <= DENSE_LIMIT else GMRES()
