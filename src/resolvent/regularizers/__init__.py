"""Penalties on a field along its trajectories, and on the sensitivity of a network to its inputs."""

from resolvent.regularizers.derivatives import KineticEnergy as KineticEnergy
from resolvent.regularizers.derivatives import TotalDerivative as TotalDerivative
from resolvent.regularizers.diagonal import DiagonalPenalty as DiagonalPenalty
from resolvent.regularizers.jacobian import JacobianPenalty as JacobianPenalty
from resolvent.regularizers.sensitivity import PenalizedOutput as PenalizedOutput
from resolvent.regularizers.sensitivity import Sensitivity as Sensitivity
from resolvent.regularizers.solvability import Solvability as Solvability
from resolvent.regularizers.trajectory import PenaltyTerms as PenaltyTerms
from resolvent.regularizers.trajectory import TrajectoryPenalty as TrajectoryPenalty
from resolvent.regularizers.trajectory import variation as variation
