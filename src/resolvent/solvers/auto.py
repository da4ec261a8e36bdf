"""The default: a choice by size, with more robust methods to fall back on."""

from dataclasses import dataclass

from torch import Tensor

from resolvent.core.problem import Problem
from resolvent.core.solver import Solver, State
from resolvent.solvers.anderson import Anderson
from resolvent.solvers.dense import DenseLU
from resolvent.solvers.descent import LBFGS
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.linear import DENSE_LIMIT, LinearSolver
from resolvent.solvers.newton import Newton
from resolvent.solvers.newton_krylov import NewtonKrylov
from resolvent.solvers.nonlinear import NonlinearSolver


@dataclass(frozen=True)
class Auto(NonlinearSolver):
    """Picks a method by the number of unknowns n of a sample, and falls back where it fails:

    | n            | first    | then         | then  |
    |--------------|----------|--------------|-------|
    | at most 32   | Newton   | Anderson     | LBFGS |
    | more         | Anderson | NewtonKrylov | LBFGS |

    A fallback goes on from the best iterate so far, and only for the samples that did not converge. What was tried
    is in `Solution.solvers`, and which of them had a sample last in `Solution.stage`. The choice depends on nothing
    but n, so that a sample's answer does not depend on the batch it came in.
    """

    def plan(self, problem: Problem) -> tuple[Solver, ...]:
        if problem.size <= DENSE_LIMIT:
            return Newton(), Anderson(), LBFGS()
        return Anderson(), NewtonKrylov(), LBFGS()

    def linear_solver(self, problem: Problem) -> Solver:
        return DenseLU() if problem.size <= DENSE_LIMIT else AutoLinear()

    def init(self, problem: Problem, w: Tensor) -> State:
        raise NotImplementedError("Auto is a plan of other solvers, which step for themselves.")

    def step(self, problem: Problem, state: State, running: Tensor) -> State:
        raise NotImplementedError("Auto is a plan of other solvers, which step for themselves.")


@dataclass(frozen=True)
class AutoLinear(LinearSolver):
    """The backward pass of `Auto` for many unknowns: Anderson, which measures its residual as it goes, and where that
    does not get there soon, `GMRES`."""

    def plan(self, problem: Problem) -> tuple[Solver, ...]:
        return _FewSteps(), GMRES()

    def init(self, problem: Problem, w: Tensor) -> State:
        raise NotImplementedError("AutoLinear is a plan of other solvers, which step for themselves.")

    def step(self, problem: Problem, state: State, running: Tensor) -> State:
        raise NotImplementedError("AutoLinear is a plan of other solvers, which step for themselves.")


@dataclass(frozen=True)
class _FewSteps(Anderson):
    max_steps = 40
