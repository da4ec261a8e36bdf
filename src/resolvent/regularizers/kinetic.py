"""The kinetic energy of trajectories."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resolvent.blocks.trajectory import Trajectory
from resolvent.equation.norms import dot
from resolvent.regularizers.points import check_fraction, check_weights, points


@dataclass(frozen=True)
class KineticEnergy:
    """Penalises the speed of trajectories, which makes them straight and even.

        R = a int |F(t, y(t))|^2 dt,      averaged over the samples

    The integral is taken by the trapezoidal rule on the grid of the trajectory, or with equal weights between. A weight
    of 0 costs nothing.

    Arguments:
        weight: a.
        fraction: None or theta, where F is evaluated, see `TrajectoryPenalty`.
        detach: whether the trajectory counts as a constant, see `TrajectoryPenalty`. By default the gradient slows the
            field at the states that were met; with False it also moves those states.

    Reference: Finlay, Jacobsen, Nurbekyan and Oberman, How to train your neural ODE, 2020.
    """

    weight: float = 1.0
    fraction: float | None = None
    detach: bool = True

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        check_fraction(self.fraction)

    def __call__(self, field: Any, trajectory: Trajectory) -> Tensor:
        """Evaluate the penalty, a tensor of no dimension; the arguments are those of `TrajectoryPenalty`."""
        at = points(field, trajectory, self.fraction, self.detach)
        if not self.weight:
            return at.states.new_zeros(())

        def energy(field: Any, t: Tensor, y: Tensor) -> tuple[Tensor]:
            velocity = field(t, y)
            return (dot(velocity, velocity),)

        return self.weight * at.integral(*at.evaluate(field, energy))
