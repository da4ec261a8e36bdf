"""Plans of several solvers: `Auto`, the default, and `Fallback`, a custom one."""

import math
from dataclasses import dataclass

from resolvent.equation.problem import Problem
from resolvent.equation.solver import Attempt, Plan, Solver
from resolvent.solvers.anderson import Anderson
from resolvent.solvers.descent import LBFGS
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.homotopy import Homotopy
from resolvent.solvers.linear import DENSE_LIMIT, DenseLU
from resolvent.solvers.newton import Newton
from resolvent.solvers.newton_krylov import NewtonKrylov
from resolvent.solvers.pseudo_transient import MOST_DENSE, PseudoTransient

# By the most unknowns for which they are tried.
_PLANS = {
    DENSE_LIMIT: (Newton(), PseudoTransient(), Homotopy(), LBFGS()),
    MOST_DENSE: (Anderson(), NewtonKrylov(), Homotopy(), PseudoTransient(), LBFGS()),
    math.inf: (Anderson(), NewtonKrylov(), PseudoTransient(), LBFGS()),
}
# The most steps of Anderson's method in the backward pass; beyond, GMRES is faster.
_FEW_STEPS = 40


@dataclass(frozen=True)
class Fallback(Plan):
    """Tries solvers one after the other, each on the samples that the earlier ones did not solve.

        rs.Fallback((rs.Picard(), rs.Newton()))

    A fallback continues from the best iterate. `Solution.solvers` lists the solvers that were tried, and
    `Solution.solver_index` the last one that ran on each sample.

    Arguments:
        solvers: in order. The first chooses the solver of the backward pass, if `ImplicitAdjoint` has none.
    """

    solvers: tuple[Solver, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "solvers", tuple(self.solvers))
        if not self.solvers or not all(isinstance(solver, Solver) for solver in self.solvers):
            raise ValueError(f"solvers must be one or more solvers such as rs.Newton(), got {self.solvers!r}.")

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return tuple(Attempt(solver) for solver in self.solvers)

    def linear_plan(self, problem: Problem) -> Plan:
        return self.solvers[0].linear_plan(problem)


@dataclass(frozen=True)
class Auto(Plan):
    """Picks a method by the number of unknowns n of a sample, with fallbacks:

    | n           | first    | then            | then            | then            | then  |
    |-------------|----------|-----------------|-----------------|-----------------|-------|
    | at most 32  | Newton   | PseudoTransient | Homotopy        | LBFGS           |       |
    | at most 128 | Anderson | NewtonKrylov    | Homotopy        | PseudoTransient | LBFGS |
    | more        | Anderson | NewtonKrylov    | PseudoTransient | LBFGS           |       |

    A fallback continues from the best iterate, and only for the samples that did not converge. The choice depends only
    on n, so the result of a sample does not depend on its batch.
    """

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        plan = next(plan for most, plan in _PLANS.items() if problem.size <= most)
        return tuple(Attempt(solver) for solver in plan)

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU() if problem.size <= DENSE_LIMIT else AutoLinear()


@dataclass(frozen=True)
class AutoLinear(Plan):
    """The backward plan of `Auto` for many unknowns: first Anderson, which measures its residual at every step, then
    `GMRES` if it does not converge soon."""

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return Attempt(Anderson(), _FEW_STEPS), Attempt(GMRES())

    def linear_plan(self, problem: Problem) -> Plan:
        return self
