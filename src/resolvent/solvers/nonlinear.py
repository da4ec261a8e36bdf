"""The base of the nonlinear solvers."""

from resolvent.equation.problem import Problem
from resolvent.equation.solver import Plan, Solver
from resolvent.solvers.dense import DenseLU
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.linear import DENSE_LIMIT


class NonlinearSolver(Solver):
    """A method for w = b + tau F(w)."""

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU() if problem.size <= DENSE_LIMIT else GMRES()
