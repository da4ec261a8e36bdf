"""Implicit residual networks in PyTorch: layers that solve w = b + tau F(w), differentiated exactly."""

from resolvent import (
    adjoints,
    analysis,
    blocks,
    errors,
    estimators,
    fields,
    models,
    regularizers,
    schemes,
    solvers,
    spectral,
)
from resolvent.blocks import Block, Equilibrium, ThetaBlock, check_field, jvp, make_implicit
from resolvent.equation.adjoint import ImplicitAdjoint, UnrolledAdjoint
from resolvent.equation.approximate_adjoint import OneStepAdjoint
from resolvent.equation.failure import Mask
from resolvent.equation.function import Rowwise
from resolvent.equation.solution import Solution, Status
from resolvent.equation.stopping import FixedSteps, Stopping
from resolvent.errors import ConvergenceError
from resolvent.fields.autonomous import Autonomous
from resolvent.integrate import odeint
from resolvent.solvers.anderson import Anderson
from resolvent.solvers.auto import Auto, Fallback
from resolvent.solvers.bicgstab import BiCGStab
from resolvent.solvers.broyden import Broyden
from resolvent.solvers.descent import LBFGS, ConjugateGradient, GradientDescent
from resolvent.solvers.gmres import GMRES
from resolvent.solvers.linear import DenseLU
from resolvent.solvers.newton import Newton
from resolvent.solvers.newton_krylov import NewtonKrylov
from resolvent.solvers.picard import Neumann, Picard
from resolvent.solvers.pseudo_transient import PseudoTransient
from resolvent.solvers.resolve import resolve

__version__ = "0.2.0"

__all__ = [
    "GMRES",
    "LBFGS",
    "Anderson",
    "Auto",
    "Autonomous",
    "BiCGStab",
    "Block",
    "Broyden",
    "ConjugateGradient",
    "ConvergenceError",
    "DenseLU",
    "Equilibrium",
    "Fallback",
    "FixedSteps",
    "GradientDescent",
    "ImplicitAdjoint",
    "Mask",
    "Neumann",
    "Newton",
    "NewtonKrylov",
    "OneStepAdjoint",
    "Picard",
    "PseudoTransient",
    "Rowwise",
    "Solution",
    "Status",
    "Stopping",
    "ThetaBlock",
    "UnrolledAdjoint",
    "adjoints",
    "analysis",
    "blocks",
    "check_field",
    "errors",
    "estimators",
    "fields",
    "jvp",
    "make_implicit",
    "models",
    "odeint",
    "regularizers",
    "resolve",
    "schemes",
    "solvers",
    "spectral",
]
