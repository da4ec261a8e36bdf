"""`Solvability`: a penalty that keeps implicit layers away from their poles."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.trajectory import Trajectory
from resolvent.equation.jacobian import Jacobian, field_jacobian
from resolvent.equation.norms import dot, flat, length, unpatterned
from resolvent.regularizers.points import check_fraction, check_weights, points

# Up to this many unknowns the steepest direction is exact; beyond, it is approximated in a Krylov space.
_MOST_EXACT = 8
# The space is invariant if the part of an image outside it is below this fraction.
_INVARIANT = 1e-5


@dataclass(frozen=True)
class Solvability:
    """Penalises slopes of a field that bring a theta layer near its pole.

        R = a/T sum_{t=1..T} max(0, theta h nu(w_t) - limit)^2,      averaged over the samples,

    where w_t is the stage at which layer t solves its equation, and nu the largest eigenvalue of the symmetric part of
    the Jacobian there. A layer has exactly one solution if theta h nu < 1, for any norm of the Jacobian: negative
    slopes are not penalised, nor is the field far from the limit.

    nu is computed for up to 8 unknowns. Beyond, a few steps of the Lanczos method estimate it from below. The penalty
    costs an evaluation of the field at all stages, two products with its Jacobian per Lanczos step, and one for the
    gradient.

    Arguments:
        weight: a. A weight of 0 costs nothing.
        theta: of the layers. For theta = 0 there is nothing to solve.
        limit: of theta h nu, below 1.
        iterations: of the Lanczos method.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.14 (existence of solutions).
    """

    weight: float = 1.0
    theta: float = 0.5
    limit: float = 0.9
    iterations: int = 5

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        check_fraction(self.theta)
        if not self.limit < 1:
            raise ValueError(f"limit must be below 1, where a layer has its pole, got {self.limit!r}.")
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(f"iterations must be 1 or more, got {self.iterations!r}.")

    def __call__(self, field: Any, trajectory: Trajectory) -> Tensor:
        """Evaluates the penalty, a 0-d tensor.

        Arguments:
            field: F(t, y), the field of the trajectory.
            trajectory: such as `block.trajectory(x)`. It counts as a constant.
        """
        at = points(field, trajectory, self.theta, detach=True)
        if not (self.weight and self.theta):
            return at.states.new_zeros(())
        (slopes,) = at.evaluate(field, self._slope)
        h = (trajectory.times[1:] - trajectory.times[:-1]).detach()
        tau = self.theta * h.reshape(len(h), -1)
        return self.weight * at.average(torch.relu(tau * slopes - self.limit).square())

    def _slope(self, field: Any, t: Tensor, y: Tensor) -> tuple[Tensor]:
        """<v, J v> in the steepest direction v, (rows,)."""
        jacobian = field_jacobian(field, t, y)
        with torch.no_grad():
            v = self._steepest(jacobian)
        return (dot(v, jacobian.transposed_product(v)),)

    def _steepest(self, jacobian: Jacobian) -> Tensor:
        """Unit vectors v (rows, *shape) for which <v, J v> is largest, exactly or approximately."""
        like = jacobian.value
        if like.shape[1:].numel() <= _MOST_EXACT:
            J = jacobian.matrix()
            return torch.linalg.eigh((J + J.mT) / 2).eigenvectors[:, :, -1].reshape(like.shape)
        return _ritz_vector(jacobian, self.iterations).reshape(like.shape)


def _ritz_vector(jacobian: Jacobian, steps: int) -> Tensor:
    """The Ritz vector (rows, n) of the largest eigenvalue of the symmetric part, in a Krylov space of dimension
    `steps`."""
    start = flat(unpatterned(jacobian.value).expand_as(jacobian.value))
    basis, images = [start / length(start)[:, None]], []
    alive = [torch.ones_like(basis[0][:, :1])]
    for step in range(steps):
        v = basis[-1].reshape(jacobian.value.shape)
        images.append(flat(jacobian.product(v) + jacobian.transposed_product(v)) / 2)
        if step == steps - 1:
            break
        rest = images[-1]
        for vector in (*basis, *basis):  # Twice, because of rounding.
            rest = rest - (rest * vector).sum(1, keepdim=True) * vector
        size, scale = length(rest)[:, None], length(images[-1])[:, None]
        found = size > _INVARIANT * scale
        basis.append(torch.where(found, rest / torch.where(found, size, 1.0), 0.0))
        alive.append(found.to(rest.dtype))
    Q, present = torch.stack(basis, dim=1), torch.cat(alive, dim=1)
    small = Q @ torch.stack(images, dim=2)
    # A missing direction must not have the largest eigenvalue.
    bottom = small.abs().sum((1, 2))[:, None] + 1
    small = (small + small.mT) / 2 - torch.diag_embed((1 - present) * bottom)
    return (torch.linalg.eigh(small).eigenvectors[:, None, :, -1] @ Q).squeeze(1)
