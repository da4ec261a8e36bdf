"""Adjoints: how solutions are differentiated, exactly or approximately."""

from resolvent.equation.adjoint import ImplicitAdjoint, UnrolledAdjoint
from resolvent.equation.approximate_adjoint import NeumannAdjoint, OneStepAdjoint, PhantomAdjoint, ShineAdjoint

__all__ = [
    "ImplicitAdjoint",
    "NeumannAdjoint",
    "OneStepAdjoint",
    "PhantomAdjoint",
    "ShineAdjoint",
    "UnrolledAdjoint",
]
