"""Plans of several solvers: `Auto`, the default, and `Fallback`, a custom one."""

import math
from dataclasses import dataclass

from resolvent.equation.contraction import MOST_BY_SECANTS
from resolvent.equation.problem import Problem
from resolvent.equation.solver import Attempt, Plan, Solver
from resolvent.solvers.anderson import Anderson
from resolvent.solvers.descent import LBFGS
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.homotopy import Homotopy
from resolvent.solvers.linear import DENSE_LIMIT, DenseLU
from resolvent.solvers.newton import Newton
from resolvent.solvers.newton_krylov import NewtonKrylov
from resolvent.solvers.picard import Picard
from resolvent.solvers.pseudo_transient import MOST_DENSE, PseudoTransient
from resolvent.solvers.simplified_newton import SimplifiedNewton

_LAST = (Attempt(PseudoTransient()), Attempt(LBFGS()))
_LAST_DENSE = (Attempt(Homotopy()), *_LAST)
# The fixed point, for the samples that contract. Slow ones are accelerated, by fewer changes where these take memory.
_QUICK = Attempt(Picard(), quick=True, rate=0.85, lead=30.0, most_expected=60, memory=12)
_QUICK_IF_LARGE = _QUICK._replace(most_expected=30, memory=5)
_QUICK_BEFORE_DENSE = _QUICK._replace(rate=0.6)
# Where Newton's method follows: its two or three steps cost as much as about ten of the fixed point.
_QUICK_BEFORE_NEWTON = Attempt(Picard(), quick=True, rate=0.5, most_expected=16)
# Backward systems contract as the equations do, if not in every step.
_QUICK_BEFORE_LU = Attempt(Picard(), quick=True, lead=4.0, most_expected=16)
# For several layers at once. A layer is disturbed by those before it until they have converged, so the first steps may
# be slow, and the others still cost less than to solve layer by layer.
_QUICK_GROUP = Attempt(Picard(), quick=True, lead=6.0)
_QUICK_GROUP_BACKWARD = Attempt(Picard(), quick=True, rate=0.75, lead=15.0)
# Newton's method is done after a few steps. Samples that need more are faster by the methods that follow.
_NEWTON = Attempt(Newton(), 16)
# Where it works, it does so in a few steps.
_KRYLOV_BEFORE_MATRIX = Attempt(NewtonKrylov(), 8)
# Beyond these steps GMRES is faster than Anderson's method in the backward pass.
_FEW_BACKWARD_STEPS = 40
# Up to this many unknowns a Newton step costs about as much as one of the fixed point.
_FEW_UNKNOWNS = 2
# Up to this many unknowns Newton's method comes early: for a single layer, and for a group of layers, which share one
# evaluation of all Jacobians.
_MOST_FOR_EARLY_NEWTON, _MOST_IN_GROUPS = 16, 24
# Up to this many unknowns the matrix of a sample is made where products with vectors have not solved it: the slopes of
# stiff fields, such as diffusion on a grid, are spread over orders of magnitude, too wide for a few of them.
_MOST_BY_MATRIX = 512

# By the most unknowns for which they are tried.
_PLANS: dict[float, tuple[Attempt, ...]] = {
    _FEW_UNKNOWNS: (_NEWTON, *_LAST_DENSE),
    _MOST_FOR_EARLY_NEWTON: (_QUICK_BEFORE_NEWTON, _NEWTON, *_LAST_DENSE),
    DENSE_LIMIT: (_QUICK_BEFORE_DENSE, _NEWTON, *_LAST_DENSE),
    MOST_DENSE: (_QUICK, Attempt(Anderson()), _NEWTON, *_LAST_DENSE),
    _MOST_BY_MATRIX: (_QUICK, Attempt(Anderson()), _KRYLOV_BEFORE_MATRIX, _NEWTON, *_LAST),
    MOST_BY_SECANTS: (_QUICK, Attempt(Anderson()), Attempt(NewtonKrylov()), *_LAST),
    math.inf: (_QUICK_IF_LARGE, Attempt(Anderson()), Attempt(NewtonKrylov()), *_LAST),
}
_ITERATIVE = (Attempt(Anderson(), _FEW_BACKWARD_STEPS), Attempt(GMRES()))
_LINEAR_PLANS: dict[float, tuple[Attempt, ...]] = {
    _FEW_UNKNOWNS: (Attempt(DenseLU()),),
    _MOST_FOR_EARLY_NEWTON: (_QUICK_BEFORE_LU, Attempt(DenseLU())),
    DENSE_LIMIT: (_QUICK_BEFORE_DENSE, Attempt(DenseLU())),
    _MOST_BY_MATRIX: (_QUICK, *_ITERATIVE, Attempt(DenseLU())),
    MOST_BY_SECANTS: (_QUICK, *_ITERATIVE),
    math.inf: (_QUICK_IF_LARGE, *_ITERATIVE),
}


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
    """Picks methods by the number of unknowns n of a sample:

    | n           | quick  | first    | then         | then            | then            | then  |
    |-------------|--------|----------|--------------|-----------------|-----------------|-------|
    | at most 2   |        | Newton   | Homotopy     | PseudoTransient | LBFGS           |       |
    | at most 32  | Picard | Newton   | Homotopy     | PseudoTransient | LBFGS           |       |
    | at most 128 | Picard | Anderson | Newton       | Homotopy        | PseudoTransient | LBFGS |
    | at most 512 | Picard | Anderson | NewtonKrylov | Newton          | PseudoTransient | LBFGS |
    | more        | Picard | Anderson | NewtonKrylov | PseudoTransient | LBFGS           |       |

    Picard keeps the samples that contract. Beyond 16 unknowns slow ones are relaxed, and accelerated by their last
    twelve changes (five beyond 1,024 unknowns), and stay while their residual falls to 0.85 a step on average, to 0.6
    where Newton's method follows, with a head start. Up to 16 unknowns they are given up if they are expected to need
    more than 16 steps. Up to 1,024 unknowns later steps use secants. On a GPU, in single precision, all steps but the
    first are accelerated by two changes. The others go on to the next method, which continues from the best iterate.
    The choice depends only on n and on the sample, so its result does not depend on the batch.
    """

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return _by_size(_PLANS, problem)

    def linear_plan(self, problem: Problem) -> Plan:
        return AutoLinear()


@dataclass(frozen=True)
class AutoLinear(Plan):
    """The backward plan of `Auto`: the Neumann series for samples that contracted in the forward solve, accelerated
    where it is slow. Then a direct solve for few unknowns; for many, Anderson's method and `GMRES`, and up to 512
    unknowns a direct solve of what these do not solve."""

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return _by_size(_LINEAR_PLANS, problem)

    def linear_plan(self, problem: Problem) -> Plan:
        return self


@dataclass(frozen=True)
class AutoGroupLinear(Plan):
    """The backward plan of `AutoGroup`, like `AutoLinear`.

    Arguments:
        direct: whether the direct solve follows, which uses the blocks of the matrix.
    """

    direct: bool

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        return (_QUICK_GROUP_BACKWARD, *((Attempt(DenseLU()),) if self.direct else _ITERATIVE))

    def linear_plan(self, problem: Problem) -> Plan:
        return self


@dataclass(frozen=True)
class AutoGroup(Plan):
    """The plan for several layers as one equation.

    Newton's method is tried only if a layer has few unknowns: with many, it is cheaper to solve the samples that do not
    contract layer by layer.

    Arguments:
        unknowns: of one layer.
        rtol: the relative tolerance of the group; see `SimplifiedNewton`.
    """

    unknowns: int
    rtol: float = 0.0

    def to_tolerance(self, rtol: float) -> "AutoGroup":
        """The same plan for this tolerance."""
        return AutoGroup(self.unknowns, rtol)

    @property
    def newton_alone(self) -> bool:
        """Whether Newton's method solves all samples."""
        return self.unknowns <= _FEW_UNKNOWNS

    @property
    def contracting(self) -> bool:
        """Whether only samples that contract quickly are solved."""
        return self.unknowns > _MOST_IN_GROUPS

    def attempts(self, problem: Problem) -> tuple[Attempt, ...]:
        if self.newton_alone:
            return (Attempt(SimplifiedNewton(self.rtol), _NEWTON.max_steps),)
        return (_QUICK_GROUP,) if self.contracting else (_QUICK_GROUP, _NEWTON)

    def linear_plan(self, problem: Problem) -> Plan:
        return DenseLU() if self.newton_alone else AutoGroupLinear(direct=not self.contracting)


NEWTON_ALONE = AutoGroup(1)
"""The plan that solves all samples of a group by Newton's method, for any number of unknowns."""


def _by_size(plans: dict[float, tuple[Attempt, ...]], problem: Problem) -> tuple[Attempt, ...]:
    return next(plan for most, plan in plans.items() if problem.size <= most)
