"""What can be said of a network from its fields and schemes."""

from resolvent.analysis.lipschitz import certified_radius, lipschitz_bound, theta_lipschitz

__all__ = ["certified_radius", "lipschitz_bound", "theta_lipschitz"]
