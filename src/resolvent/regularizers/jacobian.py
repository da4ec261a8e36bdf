"""`JacobianPenalty`: keeps the equilibrium of a function easy to find."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from resolvent.blocks.weights import frozen_weights
from resolvent.equation.structure import Structured
from resolvent.estimators import Probes, frobenius
from resolvent.regularizers.points import check_weights


@dataclass(frozen=True)
class JacobianPenalty:
    """Penalises the Jacobian of f at an equilibrium z = f(z, *inputs), which keeps the fixed point contracting.

        R = a/d |df/dz|_F^2,      averaged over the samples,      d the number of entries of z

    During training the Jacobian of an equilibrium layer tends to grow, and with it the cost of its solves, until they
    fail. The estimate costs one evaluation of f and one backward pass per probe, and another backward pass for the
    gradient. Parametrized weights are computed once.

        z = layer(x)
        loss = criterion(z) + rs.regularizers.JacobianPenalty(0.1)(layer.f, z, x)

    Arguments:
        weight: a. A weight of 0 costs nothing.
        probes: the number of random vectors for the estimate, see `rs.estimators.frobenius`.
        distribution: of the probes, "gaussian" or "rademacher".
        generator: of the probes, see `rs.estimators.Probes`.
        exact: whether to compute the norm instead of estimating it; for few unknowns.
        detach: whether z counts as a constant. By default gradients reach the parameters through f alone, as in the
            reference; with False they also flow through the equilibrium, and into the inputs.

    Reference: Bai, Koltun & Kolter, Stabilizing equilibrium models by Jacobian regularization, 2021.
    """

    weight: float = 1.0
    probes: int = 1
    distribution: str = "gaussian"
    generator: torch.Generator | None = None
    exact: bool = False
    detach: bool = True

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        Probes(self.probes, self.distribution, self.generator)

    def __call__(self, f: Callable[..., Any], z: Structured, *inputs: Any) -> Tensor:
        """Evaluates the penalty, a 0-d tensor.

        Arguments:
            f: called as f(z, *inputs), such as that of an `rs.Equilibrium`.
            z: its equilibrium, (batch, *shape) or a structure of such tensors.
            inputs: those of the equilibrium.
        """
        leaves = tree_leaves(z)
        if not self.weight:
            return leaves[0].new_zeros(())
        with frozen_weights(f) as frozen:
            squares = frobenius(
                lambda state: frozen(state, *inputs),
                None,
                z,
                probes=self.probes,
                distribution=self.distribution,
                generator=self.generator,
                exact=self.exact,
                detach=self.detach,
            )
        return self.weight * squares.mean() / sum(leaf[0].numel() for leaf in leaves)
