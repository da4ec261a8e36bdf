"""The points of a trajectory at which a penalty is evaluated, and their quadrature weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.trajectory import Trajectory
from resolvent.blocks.weights import frozen_weights
from resolvent.equation.function import as_vector_field
from resolvent.equation.structure import Structure, structure_of
from resolvent.fields.piecewise import right_end


@dataclass(frozen=True)
class Points:
    """Points on the trajectories of a batch, with the weights of a quadrature rule in time.

    The weights add up to 1: the weighted sum of the values of a function is its average along the trajectory.

    Attributes:
        times: (points,), or (points, batch) if samples have different times.
        states: (points, batch, *shape).
        positions: (points,), t/T in [0, 1].
        weights: (points,).
        duration: the length of the trajectory in time, a 0-d tensor.
        structure: of the states, if they consist of several tensors; `states` are then flat.
    """

    times: Tensor
    states: Tensor
    positions: Tensor
    weights: Tensor
    duration: Tensor
    structure: Structure | None = None

    def evaluate(self, field: Any, function: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Evaluates a function (field, t, y) at all points.

        A `rowwise` field is called with all points as one large batch, which takes a fourth of the time for small
        networks and the same for large ones. Parametrized weights are computed once.

        Arguments:
            field: F.
            function: maps F, t, (rows,) or 0-d, and y, (rows, *shape), to tensors (rows, ...). Its F has computed
                weights, and is one of flat states if there is a structure.

        Returns:
            The results of the function, (points, batch, ...) each.
        """
        count, batch = self.states.shape[:2]
        with frozen_weights(field) as field:
            field = field if self.structure is None else self.structure.field(field)
            if as_vector_field(field).rowwise:
                times = self.times.reshape(count, -1).expand(count, batch)
                values = function(field, times.reshape(-1), self.states.flatten(0, 1))
                return tuple(value.unflatten(0, (count, batch)) for value in values)
            each = [function(field, t, y) for t, y in zip(self.times, self.states, strict=True)]
        return tuple(torch.stack(values) for values in zip(*each, strict=True))

    def without_first(self) -> "Points":
        """All points except the first."""
        return replace(
            self,
            times=self.times[1:],
            states=self.states[1:],
            positions=self.positions[1:],
            weights=self.weights[1:],
        )

    def average(self, values: Tensor) -> Tensor:
        """The average over the trajectories and the batch of values (points, batch), a 0-d tensor."""
        return self.weights @ values.mean(1)

    def integral(self, values: Tensor) -> Tensor:
        """The integral over time of values (points, batch), averaged over the batch; a 0-d tensor."""
        return self.duration * self.average(values)


def points(field: Any, trajectory: Trajectory, fraction: float | None, detach: bool) -> Points:
    """The points of a trajectory at which a penalty is evaluated.

        fraction None:     y_t,                                  t = 0, ..., T,      trapezoidal rule
        fraction theta:    (1 - theta) y_t + theta y_{t+1},      t = 0, ..., T-1,    equal weights

    The second are the points at which layers of the midpoint form evaluate their field. At the first points a piecewise
    field is continuous from the right: with T pieces, piece min(t, T-1) applies at y_t. At the second points the piece
    of the layer applies.

    Arguments:
        field: F.
        trajectory: with T steps.
        fraction: where in each step: None for the grid, or theta.
        detach: whether times and states count as constants.
    """
    if not isinstance(trajectory, Trajectory):
        raise ValueError(f"a penalty reads a Trajectory, such as block.trajectory(x) gives, got {trajectory!r}.")
    structure: Structure | None = None
    times, states = trajectory.times, trajectory.states
    if not isinstance(states, Tensor):
        structure = structure_of(states, "states", leading=2)
        states = structure.flatten(states, "states", leading=2)
    if detach:
        times, states = times.detach(), states.detach()
    steps = len(times) - 1
    # Samples may start at different times, but all have the same duration.
    duration = (times[-1] - times[0]).abs().mean()
    grid = torch.arange(steps + 1, dtype=states.dtype, device=states.device)
    if fraction is None:
        weights = torch.ones_like(grid)
        weights[0] = weights[-1] = 0.5
        return Points(times, states, grid / steps, weights / steps, duration, structure)
    # At the end of a layer its own piece still applies, although a piecewise field jumps there.
    time_fraction = right_end(field, states.dtype) if fraction == 1 else fraction
    return Points(
        torch.lerp(times[:-1], times[1:], time_fraction),
        torch.lerp(states[:-1], states[1:], fraction),
        (grid[:-1] + fraction) / steps,
        torch.full_like(grid[:-1], 1 / steps),
        duration,
        structure,
    )


def check_fraction(fraction: float | None) -> None:
    """Raises a ValueError unless the fraction is None or in [0, 1]."""
    if fraction is not None and not (isinstance(fraction, int | float) and 0 <= fraction <= 1):
        raise ValueError(f"fraction must be None, for the grid, or a theta in [0, 1], got {fraction!r}.")


def check_weights(**weights: float) -> None:
    """Raises a ValueError unless all weights are finite and not negative."""
    for name, value in weights.items():
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ValueError(f"{name} must be a finite number, 0 or more, got {value!r}.")
