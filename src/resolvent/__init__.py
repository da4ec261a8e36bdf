"""Implicit residual networks in PyTorch: layers that solve w = b + tau F(w), differentiated exactly."""

from resolvent import analysis, estimators, fields, models, regularizers, schemes, spectral
from resolvent.blocks import (
    AllTogether,
    Block,
    Checkpoint,
    Compiled,
    Halves,
    LayerByLayer,
    Pushed,
    ReconstructionError,
    Reversible,
    Store,
    ThetaBlock,
    Trajectory,
    check_field,
    cuda_graph,
    make_implicit,
    push,
)
from resolvent.equation.adjoint import Adjoint, ImplicitAdjoint, NeumannAdjoint, OneStepAdjoint, UnrolledAdjoint
from resolvent.equation.function import Rowwise
from resolvent.equation.problem import Problem
from resolvent.equation.solution import Solution, Status, Work
from resolvent.equation.solver import Plan, Solver, State
from resolvent.equation.stopping import FixedSteps, Stopping
from resolvent.errors import ConvergenceError, ConvergenceWarning, DerivativeOrderError, ResolventError
from resolvent.fields.autonomous import Autonomous
from resolvent.solvers.anderson import Anderson
from resolvent.solvers.auto import Auto, Fallback
from resolvent.solvers.bicgstab import BiCGStab
from resolvent.solvers.broyden import Broyden
from resolvent.solvers.dense import DenseLU
from resolvent.solvers.descent import LBFGS, ConjugateGradient, GradientDescent
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.gradient_error import GradientError, gradient_error
from resolvent.solvers.newton import Chord, Newton
from resolvent.solvers.newton_krylov import NewtonKrylov
from resolvent.solvers.picard import Neumann, Picard
from resolvent.solvers.pseudo_transient import PseudoTransient
from resolvent.solvers.resolve import resolve

__version__ = "0.1.0"

__all__ = [
    "GMRES",
    "LBFGS",
    "Adjoint",
    "AllTogether",
    "Anderson",
    "Auto",
    "Autonomous",
    "BiCGStab",
    "Block",
    "Broyden",
    "Checkpoint",
    "Chord",
    "Compiled",
    "ConjugateGradient",
    "ConvergenceError",
    "ConvergenceWarning",
    "DenseLU",
    "DerivativeOrderError",
    "Fallback",
    "FixedSteps",
    "GradientDescent",
    "GradientError",
    "Halves",
    "ImplicitAdjoint",
    "LayerByLayer",
    "Neumann",
    "NeumannAdjoint",
    "Newton",
    "NewtonKrylov",
    "OneStepAdjoint",
    "Picard",
    "Plan",
    "Problem",
    "PseudoTransient",
    "Pushed",
    "ReconstructionError",
    "ResolventError",
    "Reversible",
    "Rowwise",
    "Solution",
    "Solver",
    "State",
    "Status",
    "Stopping",
    "Store",
    "ThetaBlock",
    "Trajectory",
    "UnrolledAdjoint",
    "Work",
    "analysis",
    "check_field",
    "cuda_graph",
    "estimators",
    "fields",
    "gradient_error",
    "make_implicit",
    "models",
    "push",
    "regularizers",
    "resolve",
    "schemes",
    "spectral",
]
