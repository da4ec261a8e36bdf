"""A disc in the complex plane that holds the slopes of a map."""

from typing import NamedTuple


class Disc(NamedTuple):
    """A disc with a real centre that is known to hold all slopes of a vector field F.

        |F(u) - F(v) - center (u - v)| <= radius |u - v|      for all u, v

    Hence every eigenvalue of a Jacobian of F lies in the disc, F has the Lipschitz constant `max(|low|, |high|)`,
    and the one-sided Lipschitz constant of F is at most `high`.
    """

    center: float
    radius: float

    @property
    def low(self) -> float:
        """Left end of the disc on the real axis."""
        return self.center - self.radius

    @property
    def high(self) -> float:
        """Right end of the disc on the real axis."""
        return self.center + self.radius

    @property
    def lipschitz(self) -> float:
        """The largest modulus in the disc."""
        return abs(self.center) + self.radius

    @classmethod
    def spanning(cls, low: float, high: float) -> "Disc":
        """The disc with the diameter [low, high]; it contains every disc with a real centre between these ends."""
        return cls((low + high) / 2, (high - low) / 2)
