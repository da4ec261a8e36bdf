"""Penalties on time derivatives of trajectories: the kinetic energy, and derivatives of higher order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.trajectory import Trajectory
from resolvent.equation.modes import outside_inference_mode
from resolvent.equation.norms import dot
from resolvent.regularizers.points import check_fraction, check_weights, points

Field = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class KineticEnergy:
    """Penalises the speed of trajectories, which makes them straight with constant speed.

        R = a int |F(t, y(t))|^2 dt,      averaged over the samples

    The integral is taken by the trapezoidal rule on the grid of the trajectory, or with equal weights at `fraction`. A
    weight of 0 costs nothing.

    Arguments:
        weight: a.
        fraction: None or theta, where F is evaluated, see `TrajectoryPenalty`.
        detach: whether the trajectory counts as a constant, see `TrajectoryPenalty`. By default the gradient reduces
            the field at the states of the trajectory; with False it also moves those states.

    Reference: Finlay, Jacobsen, Nurbekyan and Oberman, How to train your neural ODE, 2020.
    """

    weight: float = 1.0
    fraction: float | None = None
    detach: bool = True

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        check_fraction(self.fraction)

    def __call__(self, field: Any, trajectory: Trajectory) -> Tensor:
        """Evaluates the penalty, a 0-d tensor; the arguments are those of `TrajectoryPenalty`."""
        at = points(field, trajectory, self.fraction, self.detach)
        if not self.weight:
            return at.states.new_zeros(())

        def energy(field: Any, t: Tensor, y: Tensor) -> tuple[Tensor]:
            velocity = field(t, y)
            return (dot(velocity, velocity),)

        return self.weight * at.integral(*at.evaluate(field, energy))


@dataclass(frozen=True)
class TotalDerivative:
    """Penalises the K-th time derivative of trajectories, which makes them easy to integrate with large steps.

        R = a int |d^K y/dt^K|^2 dt,      y' = F(t, y),      averaged over the samples

    The derivatives are those of the solution of the differential equation through each state: y'' = F_t + F_y F, and so
    on. K = 1 is the `KineticEnergy`. The integral is taken by the trapezoidal rule on the grid of the trajectory, or
    with equal weights at `fraction`. A weight of 0 costs nothing.

    Arguments:
        weight: a.
        order: K; the reference matches it to the order of the scheme. It takes K evaluations of F, with up to K - 1
            nested forward-mode derivatives; each nesting costs about twice as much as the one before.
        fraction: None or theta, where derivatives are evaluated, see `TrajectoryPenalty`.
        detach: whether the trajectory counts as a constant, see `TrajectoryPenalty`.

    Reference: Kelly, Bettencourt, Johnson and Duvenaud, Learning differential equations that are easy to solve, 2020.
    """

    weight: float = 1.0
    order: int = 2
    fraction: float | None = None
    detach: bool = True

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        check_fraction(self.fraction)
        if not isinstance(self.order, int) or isinstance(self.order, bool) or self.order < 1:
            raise ValueError(f"order must be a whole number, 1 or more, got {self.order!r}.")

    def __call__(self, field: Any, trajectory: Trajectory) -> Tensor:
        """Evaluates the penalty, a 0-d tensor; the arguments are those of `TrajectoryPenalty`."""
        at = points(field, trajectory, self.fraction, self.detach)
        if not self.weight:
            return at.states.new_zeros(())

        def square(field: Field, t: Tensor, y: Tensor) -> tuple[Tensor]:
            derivative = field
            for _ in range(self.order - 1):
                derivative = _along(field, derivative)
            value = derivative(t, y)
            return (dot(value, value),)

        return self.weight * at.integral(*at.evaluate(field, square))


def _along(field: Field, g: Field) -> Field:
    """d/dt g(t, y(t)) = g_t + g_y F, as a function of t and y."""

    def derivative(t: Tensor, y: Tensor) -> Tensor:
        with outside_inference_mode(t, y) as (t, y):
            change: Tensor = torch.func.jvp(g, (t, y), (torch.ones_like(t), field(t, y)))[1]
        return change

    return derivative
