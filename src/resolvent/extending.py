"""Base classes and argument types for new solvers, plans and adjoints. See docs/extending.md.

Those for schemes are in `resolvent.schemes`, for fields in `resolvent.fields`, for memory policies and strategies in
`resolvent.blocks`.
"""

from resolvent.equation.adjoint import Adjoint, AttachedAdjoint
from resolvent.equation.function import Function, VectorField
from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization, evaluate_with_matrix
from resolvent.equation.matrix import Matrix
from resolvent.equation.norms import dot, flat, length, per_sample, rms, select
from resolvent.equation.options import SolveOptions
from resolvent.equation.problem import NonlinearProblem, Problem
from resolvent.equation.solution import Work
from resolvent.equation.solver import Attempt, Plan, Solver, State
from resolvent.equation.stopping import StoppingRule
from resolvent.solvers.linear import LinearSolver
from resolvent.solvers.nonlinear import NonlinearSolver

__all__ = [
    "Adjoint",
    "AttachedAdjoint",
    "Attempt",
    "Function",
    "LinearProblem",
    "LinearSolver",
    "Linearization",
    "Matrix",
    "NonlinearProblem",
    "NonlinearSolver",
    "Plan",
    "Problem",
    "SolveOptions",
    "Solver",
    "State",
    "StoppingRule",
    "VectorField",
    "Work",
    "dot",
    "evaluate_with_matrix",
    "flat",
    "length",
    "per_sample",
    "rms",
    "select",
]
