"""Analysis of schemes, fields and networks: stability, spectra, Lipschitz constants, diagnosis."""

from resolvent.analysis.diagnosis import Diagnosis, diagnose
from resolvent.analysis.facts import Facts, contractive_radius, scheme_facts, scheme_order, stability_interval
from resolvent.analysis.growth import amplification, is_stable, linear_form, stability_matrix
from resolvent.analysis.krylov import extreme_eigenvalues
from resolvent.analysis.layer_report import LayerReport
from resolvent.analysis.lipschitz import certified_radius, lipschitz_bound, theta_lipschitz
from resolvent.analysis.sensitivity import local_lipschitz
from resolvent.analysis.spectra import jacobian_spectrum, numerical_range, one_sided_lipschitz
from resolvent.analysis.spectrum_file import Spectrum, load_spectrum
from resolvent.analysis.stability import (
    OSCILLATOR_SCHEMES,
    multistep_roots,
    oscillator_eigenvalues,
    oscillator_matrix,
    runge_kutta_stability,
    theta_stability,
    theta_stability_inverse,
)
from resolvent.equation.jacobian import Jacobian
from resolvent.solvers.gradient_error import GradientComparison, gradient_error

__all__ = [
    "OSCILLATOR_SCHEMES",
    "Diagnosis",
    "Facts",
    "GradientComparison",
    "Jacobian",
    "LayerReport",
    "Spectrum",
    "amplification",
    "certified_radius",
    "contractive_radius",
    "diagnose",
    "extreme_eigenvalues",
    "gradient_error",
    "is_stable",
    "jacobian_spectrum",
    "linear_form",
    "lipschitz_bound",
    "load_spectrum",
    "local_lipschitz",
    "multistep_roots",
    "numerical_range",
    "one_sided_lipschitz",
    "oscillator_eigenvalues",
    "oscillator_matrix",
    "runge_kutta_stability",
    "scheme_facts",
    "scheme_order",
    "stability_interval",
    "stability_matrix",
    "theta_lipschitz",
    "theta_stability",
    "theta_stability_inverse",
]
