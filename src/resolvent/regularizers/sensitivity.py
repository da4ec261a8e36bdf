"""`Sensitivity`: a penalty on the derivative of outputs with respect to inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from resolvent.blocks.jvp import JvpResult, jvp
from resolvent.equation.norms import flat
from resolvent.equation.structure import Structured, describe, structure_of
from resolvent.estimators import Probes
from resolvent.regularizers.points import check_weights

MEASURES = ("square", "variance", "softmax")


class PenalizedOutput(NamedTuple):
    """The result of a pass with a `Sensitivity`.

    Attributes:
        outputs: of the network.
        penalty: a 0-d tensor, to add to the loss.
        jvp: the pass itself, see `rs.jvp`; None if the weight is 0.
    """

    outputs: Tensor
    penalty: Tensor
    jvp: JvpResult | None


@dataclass(frozen=True)
class Sensitivity:
    """Penalises how much the outputs of a network change with its inputs.

        square:      R = a E 1/d sum_i (J v)_i^2 = a/d |J|_F^2,      J = dy/dx
        variance:    R = a E 1/d sum_i ((J v)_i - m)^2,      m = 1/d sum_i (J v)_i
        softmax:     R = a E sum_i p_i ((J v)_i - m)^2,      m = sum_i p_i (J v)_i,      p = softmax(y)

    averaged over the samples, with d outputs and random directions v, one per sample, drawn in each call. For class
    scores only differences matter, and "variance" measures only these. "softmax" with a = s^2 / 2 is the increase of
    the cross-entropy due to Gaussian noise of standard deviation s on the inputs, to second order and for y linear in
    x; samples that are classified with certainty contribute little. The inputs are not changed, and the derivative is
    exact through explicit and implicit layers. A training step takes two to four times as long.

        logits, penalty, _ = rs.regularizers.Sensitivity(0.03, "variance")(model, images)
        loss = cross_entropy(logits, labels) + penalty

    Arguments:
        weight: a. With 0 the network is evaluated as usual.
        measure: "square", or for class scores, (batch, classes), "variance" or "softmax".
        distribution: of the directions, "gaussian" or "rademacher".
        generator: of the directions, see `rs.estimators.Probes`.

    Reference: Bishop, Training with noise is equivalent to Tikhonov regularization, 1995; Hoffman, Roberts & Yaida,
    Robust learning with Jacobian regularization, 2019.
    """

    weight: float = 1.0
    measure: str = "square"
    distribution: str = "gaussian"
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        if self.measure not in MEASURES:
            raise ValueError(f"measure must be one of {MEASURES}, got {self.measure!r}.")
        Probes(1, self.distribution, self.generator)

    def __call__(self, model: Callable[[Any], Any], x: Structured) -> PenalizedOutput:
        """Passes `x`, (batch, *shape) or a structure of such tensors, through a model that `rs.jvp` supports."""
        if not self.weight:
            outputs = model(x)
            return PenalizedOutput(outputs, tree_leaves(outputs)[0].new_zeros(()), None)
        result = jvp(model, x, self._direction(x))
        return PenalizedOutput(result.outputs, self.of(result.outputs, result.tangents), result)

    def _direction(self, x: Structured) -> Structured:
        probes = Probes(1, self.distribution, self.generator)
        if isinstance(x, Tensor):
            return next(iter(probes.draw(x)))
        structure = structure_of(x, "x")
        return structure.unflatten(next(iter(probes.draw(structure.flatten(x, "x")))))

    def of(self, outputs: Structured, tangents: Structured) -> Tensor:
        """The penalty for given tangents J v."""
        if isinstance(tangents, Tensor):
            rows = flat(tangents)
        else:
            rows = structure_of(tangents, "the outputs").flatten(tangents, "the tangents")
        if self.measure == "square":
            return self.weight * rows.square().mean()
        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            raise ValueError(
                f"measure={self.measure!r} takes scores of classes, (batch, classes), got {describe(outputs)}."
            )
        p = outputs.softmax(1) if self.measure == "softmax" else torch.full_like(rows, 1 / rows.shape[1])
        deviations = rows - (p * rows).sum(1, keepdim=True)
        return self.weight * (p * deviations.square()).sum(1).mean()
