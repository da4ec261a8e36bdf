"""Norms of linear maps: estimates, certified bounds, and spectral normalisation."""

from resolvent.spectral.bounds import Disc, NormBound, norm_bound, schur_bound
from resolvent.spectral.operators import LayerOperator, layer_operator
from resolvent.spectral.parametrization import SpectralNorm, spectral_norm
from resolvent.spectral.power import operator_norm, power_iteration

__all__ = [
    "Disc",
    "LayerOperator",
    "NormBound",
    "SpectralNorm",
    "layer_operator",
    "norm_bound",
    "operator_norm",
    "power_iteration",
    "schur_bound",
    "spectral_norm",
]
