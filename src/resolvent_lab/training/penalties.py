"""`Penalties`: the weights of penalties that are added to the loss."""

from dataclasses import dataclass

from torch import Tensor

import resolvent as rs


@dataclass(frozen=True)
class Penalties:
    """Weights of penalties on the fields of the layers; all are 0 by default, which costs nothing.

    Arguments:
        divergence: of `rs.regularizers.TrajectoryPenalty`: makes layers stable.
        jacobian: of the same, and of `rs.regularizers.JacobianPenalty` for an equilibrium: limits slopes.
        variation: of the same: makes the weights of layers alike; needs layers with weights of their own.
        power: of the time in the divergence.
        solvability: of `rs.regularizers.Solvability`: keeps implicit layers away from their poles.
    """

    divergence: float = 0.0
    jacobian: float = 0.0
    variation: float = 0.0
    power: float = 2.0
    solvability: float = 0.0

    def __post_init__(self) -> None:
        for name in ("divergence", "jacobian", "variation", "power", "solvability"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}.")

    def of_block(self, block: rs.ThetaBlock, trajectory: rs.blocks.Trajectory) -> dict[str, Tensor]:
        """The penalties that have a weight, of one block."""
        terms = {}
        if self.divergence or self.jacobian or self.variation:
            penalty = rs.regularizers.TrajectoryPenalty(
                divergence=self.divergence, jacobian=self.jacobian, variation=self.variation, power=self.power
            )
            terms["penalty"] = penalty(block.field, trajectory).total
        theta = float(block.theta)
        if self.solvability and theta:
            solvability = rs.regularizers.Solvability(self.solvability, theta)
            terms["solvability"] = solvability(block.field, trajectory)
        return terms

    def of_equilibrium(self, layer: rs.Equilibrium, z: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
        """The penalty on the Jacobian, if it has a weight."""
        if not self.jacobian:
            return {}
        return {"penalty": rs.regularizers.JacobianPenalty(self.jacobian)(layer.f, z, *inputs)}


def added(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of penalties by name."""
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
