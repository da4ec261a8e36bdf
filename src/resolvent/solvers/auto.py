"""Plans of several solvers: the default, and one of your own."""

from dataclasses import dataclass

from resolvent.equation.problem import Problem
from resolvent.equation.solver import Attempt, Plan, Solver
from resolvent.solvers.anderson import Anderson
from resolvent.solvers.dense import DenseLU
from resolvent.solvers.descent import LBFGS
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.linear import DENSE_LIMIT
from resolvent.solvers.newton import Newton
from resolvent.solvers.newton_krylov import NewtonKrylov
from resolvent.solvers.pseudo_transient import PseudoTransient

_FOR_FEW = tuple(Attempt(solver) for solver in (Newton(), PseudoTransient(), LBFGS()))
_FOR_MANY = tuple(Attempt(solver) for solver in (Anderson(), NewtonKrylov(), PseudoTransient(), LBFGS()))
# Steps of Anderson's method in the backward pass, after which GMRES is faster.
_FEW_STEPS = 40


@dataclass(frozen=True)
class Fallback(Plan):
    """Tries solvers one after the other, each on the samples that the ones before it did not solve.

        rs.Fallback((rs.Picard(), rs.Newton()))

    A fallback goes on from the best iterate so far. What was tried is in `Solution.solvers`, and which of them had a
    sample last in `Solution.solver_index`.

    Arguments:
        solvers: in order. The first one chooses the solver of the backward pass, if `ImplicitAdjoint` does not.
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
    """Picks a method by the number of unknowns n of a sample, and falls back where it fails:

    | n          | first    | then         | then            | then  |
    |------------|----------|--------------|-----------------|-------|
    | at most 32 | Newton   |              | PseudoTransient | LBFGS |
    | more       | Anderson | NewtonKrylov | PseudoTransient | LBFGS |

    A fallback goes on from the best iterate so far, and only for the samples that did not converge. The choice depends
    on nothing but n, so that a sample's answer does not depend on the batch it came in.
    """

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return _FOR_FEW if problem.size <= DENSE_LIMIT else _FOR_MANY

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU() if problem.size <= DENSE_LIMIT else AutoLinear()


@dataclass(frozen=True)
class AutoLinear(Plan):
    """The backward pass of `Auto` for many unknowns: Anderson, which measures its residual as it goes, and where that
    does not get there soon, `GMRES`."""

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return Attempt(Anderson(), _FEW_STEPS), Attempt(GMRES())

    def linear_plan(self, problem: Problem) -> Plan:
        return self
