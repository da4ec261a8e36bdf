"""What can be said of a network from its fields and schemes."""

from .lipschitz import certified_radius as certified_radius
from .lipschitz import lipschitz_bound as lipschitz_bound
from .lipschitz import theta_lipschitz as theta_lipschitz
