"""Norms of linear maps: measured, bounded with certainty, and kept within limits while a network trains."""

from .bounds import NormBound as NormBound
from .bounds import norm_bound as norm_bound
from .bounds import schur_bound as schur_bound
from .disc import Disc as Disc
from .operators import layer_operator as layer_operator
from .parametrization import SpectralNorm as SpectralNorm
from .parametrization import spectral_norm as spectral_norm
from .power import operator_norm as operator_norm
from .power import power_iteration as power_iteration
