"""Publication-ready figures of stability regions, spectra, fields and training; needs matplotlib."""

from resolvent.plotting.curves import training_curves
from resolvent.plotting.fields import vector_field
from resolvent.plotting.phase import phase_diagram, phase_diagrams
from resolvent.plotting.regions import stability_region, theta_regions
from resolvent.plotting.spectra import spectrum
from resolvent.plotting.style import COLORS, PAGE, paper_style, save

__all__ = [
    "COLORS",
    "PAGE",
    "paper_style",
    "phase_diagram",
    "phase_diagrams",
    "save",
    "spectrum",
    "stability_region",
    "theta_regions",
    "training_curves",
    "vector_field",
]
