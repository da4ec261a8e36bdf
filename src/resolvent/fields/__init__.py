"""Vector fields F(t, y), with bounds on their spectra."""

from resolvent.equation.linear_part import FourierPart, LinearPart, MatrixPart
from resolvent.fields.activations import Sin, Slopes, nonexpansive, slopes_of
from resolvent.fields.autonomous import Autonomous
from resolvent.fields.base import Field, Time
from resolvent.fields.bounded import Bounded
from resolvent.fields.conv import Conv
from resolvent.fields.mlp import MLP
from resolvent.fields.monotone import Monotone
from resolvent.fields.one_sided import OneSided
from resolvent.fields.piecewise import Piecewise
from resolvent.fields.structured import ConvexGradient, GradientFlow, Hamiltonian, Partitioned
from resolvent.fields.weights import initialise

__all__ = [
    "MLP",
    "Autonomous",
    "Bounded",
    "Conv",
    "ConvexGradient",
    "Field",
    "FourierPart",
    "GradientFlow",
    "Hamiltonian",
    "LinearPart",
    "MatrixPart",
    "Monotone",
    "OneSided",
    "Partitioned",
    "Piecewise",
    "Sin",
    "Slopes",
    "Time",
    "initialise",
    "nonexpansive",
    "slopes_of",
]
