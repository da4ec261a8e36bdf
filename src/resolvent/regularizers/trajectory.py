"""`TrajectoryPenalty`: the regulariser of the paper, and the variation of the weights in time."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.trajectory import Trajectory
from resolvent.estimators import Probes, trace_and_frobenius
from resolvent.fields.piecewise import Piecewise, piecewise_parts
from resolvent.regularizers.points import Points, check_fraction, check_weights, points

SCALES = ("1/T", "1/T^2")


@dataclass(frozen=True)
class PenaltyTerms:
    """The terms of a `TrajectoryPenalty`; each a 0-d tensor.

    Attributes:
        divergence: the term of the divergence, with its weight.
        jacobian: the term of the Jacobian, with its weight.
        variation: the term of the parameters, with its weight.
        mean_divergence: the average over time and samples of div F / d, without a graph; None if the terms did not need
            it at every point (the divergence term alone skips t = 0, unless p = 0).
        mean_jacobian: the same for |dF/dy|_F^2 / d^2.
    """

    divergence: Tensor
    jacobian: Tensor
    variation: Tensor
    mean_divergence: Tensor | None
    mean_jacobian: Tensor | None

    @property
    def total(self) -> Tensor:
        """The sum of the three terms, to add to the loss."""
        return self.divergence + self.jacobian + self.variation


@dataclass(frozen=True)
class TrajectoryPenalty:
    """Penalises the divergence, the Jacobian and the variation in time of a field along a trajectory.

        R = 1/T sum'_{t=0..T} [a_div/d (t/T)^p div F(t, y_t) + a_jac/d^2 |dF/dy(t, y_t)|_F^2]
            + a_TV/T sum_{t=1..T-1} |g_t - g_{t-1}|^2

    averaged over the samples; T is the number of steps, sum' the trapezoidal rule, d the dimension of a sample, g_t the
    parameters of piece t of a `Piecewise` field. The divergence, the sum of the eigenvalues of dF/dy, moves the
    spectrum to the left, where implicit layers are stable; the Jacobian term, the sum of the squared singular values,
    limits its size. F is the field per unit of time. The paper absorbs the step h into F: its weights for h F are
    a_div h and a_jac h^2 here.

    Together the terms cost one evaluation of F and one backward pass per probe. A term of weight 0 costs nothing, nor
    does the point t = 0 if no term gives it a weight.

    Arguments:
        divergence: a_div.
        jacobian: a_jac.
        variation: a_TV; a weight other than 0 needs a `Piecewise` field.
        power: p >= 0.
        probes: the number of random vectors for the estimates, see `rs.estimators.trace`.
        distribution: of the probes, "gaussian" or "rademacher".
        generator: of the probes, which are drawn in each call. See `rs.estimators.Probes`, also for data-parallel
            training.
        exact: whether to compute traces and norms instead of estimating them; for small d.
        fraction: None evaluates at the grid states y_t, as the paper does. theta evaluates within each step, at
            (1 - theta) y_t + theta y_{t+1}, t = 0, ..., T-1, with t + theta for t in the weight and in F.
        detach: whether the trajectory counts as a constant. By default gradients stop at its states and reach the
            parameters only through F; with False they also flow through the states, into everything they depend on.
        variation_scale: "1/T" or "1/T^2", the factor of a_TV; the paper has the first in the examples and the second
            in the general formula. T is the number of pieces.
        saturate: whether to use sigmoid(div F) for div F, which does not reward unlimited dissipation. Its estimate is
            biased, unless exact.

    Reference: Reshniak and Webster, Robust learning with implicit residual networks, 2021, eq. (17).
    """

    divergence: float = 0.0
    jacobian: float = 0.0
    variation: float = 0.0
    power: float = 2
    probes: int = 1
    distribution: str = "gaussian"
    generator: torch.Generator | None = None
    exact: bool = False
    fraction: float | None = None
    detach: bool = True
    variation_scale: str = "1/T"
    saturate: bool = False

    def __post_init__(self) -> None:
        check_weights(divergence=self.divergence, jacobian=self.jacobian, variation=self.variation, power=self.power)
        if self.variation_scale not in SCALES:
            raise ValueError(f"variation_scale must be one of {SCALES}, got {self.variation_scale!r}.")
        check_fraction(self.fraction)
        Probes(self.probes, self.distribution, self.generator)

    def __call__(self, field: Any, trajectory: Trajectory) -> PenaltyTerms:
        """Evaluates the terms.

        Arguments:
            field: F(t, y), the field of the trajectory.
            trajectory: of T steps, such as `block.trajectory(x)`.
        """
        at = points(field, trajectory, self.fraction, self.detach)
        zero = at.states.new_zeros(())
        variation = self._variation(field) if self.variation else zero
        if not (self.divergence or self.jacobian):
            return PenaltyTerms(zero, zero, variation, None, None)
        everywhere = bool(self.jacobian or self.power == 0 or self.fraction)
        at = at if everywhere else at.without_first()
        d = at.states.shape[2:].numel()
        trace, square = at.evaluate(field, self._estimate)
        return PenaltyTerms(
            self._divergence(at, trace) / d if self.divergence else zero,
            self.jacobian * at.average(square) / d**2 if self.jacobian else zero,
            variation,
            at.average(trace.detach()) / d if everywhere else None,
            at.average(square.detach()) / d**2 if everywhere else None,
        )

    def _estimate(self, field: Any, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return trace_and_frobenius(
            field,
            t,
            y,
            probes=self.probes,
            distribution=self.distribution,
            generator=self.generator,
            exact=self.exact,
            detach=self.detach,
        )

    def _divergence(self, at: Points, trace: Tensor) -> Tensor:
        rewarded = trace.sigmoid() if self.saturate else trace
        return self.divergence * at.average(at.positions[:, None] ** self.power * rewarded)

    def _variation(self, field: Any) -> Tensor:
        exponent = 1 + SCALES.index(self.variation_scale)
        terms = [variation(layers) / len(layers.pieces) ** exponent for layers in piecewise(field)]
        return self.variation * torch.stack(terms).sum()


def variation(field: Piecewise) -> Tensor:
    """The total variation of piecewise constant parameters.

        sum over t = 1, ..., T-1 of |g_t - g_{t-1}|^2,      g_t all parameters of piece t

    T pieces have T - 1 differences. The parameters are those of the optimiser: for a normalised weight, the weight
    before normalisation.

    Arguments:
        field: its pieces must have the same parameters.

    Returns:
        A 0-d tensor.
    """
    named = [dict(piece.named_parameters()) for piece in field.pieces]
    shapes = [{name: tuple(p.shape) for name, p in parameters.items()} for parameters in named]
    for k, (before, after) in enumerate(pairwise(shapes)):
        if before != after:
            raise ValueError(
                f"the variation needs pieces with the same parameters, but piece {k} has {before} and piece {k + 1} "
                f"has {after}."
            )
    sets = torch.stack([nn.utils.parameters_to_vector(parameters.values()) for parameters in named])
    return sets.diff(dim=0).square().sum()


def piecewise(field: Any) -> list[Piecewise]:
    """The piecewise fields in a field; raises if there are none."""
    found = piecewise_parts(field)
    if not found:
        raise ValueError(
            f"the variation needs the pieces of an rs.fields.Piecewise, and {type(field).__name__} has none: give each "
            "layer its own weights, or leave the variation out."
        )
    return found
