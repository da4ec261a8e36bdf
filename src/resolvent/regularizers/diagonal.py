"""`DiagonalPenalty`: a penalty on the diagonal of the Jacobian."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.trajectory import Trajectory
from resolvent.equation.norms import flat
from resolvent.equation.structure import Structure
from resolvent.estimators import Probes, diagonal
from resolvent.regularizers.points import check_fraction, check_weights, points

Measure = Callable[[Tensor, Any, Any], Any]


@dataclass(frozen=True)
class DiagonalPenalty:
    """Penalises each entry of the diagonal of the Jacobian along a trajectory. (The divergence term of
    `TrajectoryPenalty` depends only on their sum.)

        R = a/T sum'_{t=0..T} 1/d sum_i m(t, y_t, D(t, y_t))_i,      D = diag dF/dy,      averaged over the samples

    By default m is the square, which keeps the entries small. A measure of your own may depend on the state: for

        DiagonalPenalty(1.0, lambda t, y, D: torch.relu(D + y.abs()) ** 2)

    each entry is driven to dissipate at a rate of at least |y_i|.

    D is an unbiased estimate, but m of it is unbiased only if m is linear in D. The square adds the variance of the
    estimate: for entry i and n signs, the sum of J_ji^2 over j != i, divided by n. More probes reduce the bias, and
    `exact` removes it.

    Arguments:
        weight: a. A weight of 0 costs nothing.
        measure: m, called with t, (rows,) or 0-d, y and D, (rows, *shape) each, in the structure of the states; returns
            the like of y. None takes the square.
        probes: the number of random vectors for the estimate, see `rs.estimators.diagonal`.
        distribution: of the probes, "rademacher" or "gaussian"; take at least 3 Gaussian probes.
        generator: of the probes, see `rs.estimators.Probes`.
        exact: whether to compute the diagonal instead of estimating it.
        fraction: None or theta, where F is evaluated, see `TrajectoryPenalty`.
        detach: whether the trajectory counts as a constant, see `TrajectoryPenalty`.

    Reference: Bekas, Kokiopoulou and Saad, An estimator for the diagonal of a matrix, 2007.
    """

    weight: float = 1.0
    measure: Measure | None = None
    probes: int = 1
    distribution: str = "rademacher"
    generator: torch.Generator | None = None
    exact: bool = False
    fraction: float | None = None
    detach: bool = True

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        check_fraction(self.fraction)
        Probes(self.probes, self.distribution, self.generator)

    def __call__(self, field: Any, trajectory: Trajectory) -> Tensor:
        """Evaluates the penalty, a 0-d tensor; the arguments are those of `TrajectoryPenalty`."""
        at = points(field, trajectory, self.fraction, self.detach)
        if not self.weight:
            return at.states.new_zeros(())

        def measured(field: Any, t: Tensor, y: Tensor) -> tuple[Tensor]:
            entries = diagonal(
                field,
                t,
                y,
                probes=self.probes,
                distribution=self.distribution,
                generator=self.generator,
                exact=self.exact,
                detach=self.detach,
            )
            values = entries.square() if self.measure is None else self._measured(at.structure, t, y, entries)
            if values.shape != y.shape:
                raise ValueError(f"measure must keep the shape {tuple(y.shape)} of y, but gave {tuple(values.shape)}.")
            return (flat(values).mean(1),)

        return self.weight * at.average(*at.evaluate(field, measured))

    def _measured(self, structure: Structure | None, t: Tensor, y: Tensor, entries: Tensor) -> Tensor:
        """The user's measure, called with structured states if they have a structure."""
        assert self.measure is not None
        if structure is None:
            return self.measure(t, y, entries)
        values = self.measure(t, structure.unflatten(y), structure.unflatten(entries))
        return structure.flatten(values, "the value of measure")
