"""Example 1: regression of a sine, with a penalty on the divergence of the field.

Twenty points of the sine, as states (x, 0) in the plane, pass through five layers with shared weights. The second
component of the last state is the prediction. The loss rewards negative divergence with the weight alpha_div.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab.experiments.network import Batches, Config, Metrics, Network, mean_steps, sign_flips

THETAS = ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
LAYERS = 5
SCHEDULES = ("plateau", "constant")
BAND = 0.2
"""Half the width of the band around the line of starting points. Its image shows how much the field contracts."""

# The authors stop at a squared norm of 1e-6. Our norm is the root mean square of the two components.
_PAPER_STOPPING = rs.Stopping(rtol=0.0, atol=(1e-6 / 2) ** 0.5, max_steps=200)


@dataclass(frozen=True, kw_only=True)
class RegressionConfig(Config):
    """Settings of the penalty and the training.

    Attributes:
        alpha_div, alpha_jac: weights of divergence and Jacobian.
        power: exponent of t/T.
        exact: whether divergence and Jacobian are computed; by default one Gaussian probe estimates them.
        schedule: of the learning rate: "plateau" reduces it when the error stops falling, "constant" keeps it.
    """

    alpha_div: float
    alpha_jac: float = 0.1
    power: float = 2.0
    exact: bool = False
    epochs: int = 3000
    learning_rate: float = 1e-3
    schedule: str = "plateau"

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}.")

    @property
    def name(self) -> str:
        return f"theta{self.theta:g}-div{self.alpha_div:g}-seed{self.seed}"


def configs(quick: bool, thetas: Sequence[float] | None, seeds: int) -> list[RegressionConfig]:
    epochs = 400 if quick else 3000
    return [
        RegressionConfig(theta=theta, alpha_div=alpha, seed=seed, epochs=epochs)
        for seed in range(seeds)
        for theta in thetas or ((0.0, 0.5, 1.0) if quick else THETAS)
        for alpha in ((0.0, 0.5, 1.0) if quick else ALPHAS)
    ]


def augment(x: Tensor, second: float = 0.0) -> Tensor:
    """Points on the line as states in the plane, (n, 2)."""
    return torch.stack([x, torch.full_like(x, second)], dim=1)


def data(config: RegressionConfig) -> Batches:
    x = torch.linspace(-5, 5, 20)
    return Batches([(augment(x), x.sin())])


class Regression(Network):
    """Five layers with 380 parameters in total, for every theta."""

    config: RegressionConfig

    def __init__(self, config: RegressionConfig) -> None:
        super().__init__(config)
        field = rs.fields.MLP(2, 10, 3, init=config.init)
        # The spectrum of this field is not bounded. Eigenvalues may reach 1 / (theta h), where a layer folds the plane.
        self.block = _block(field, config.theta)
        # Weights of 1: the terms are recorded without their weights.
        self.penalty = rs.regularizers.TrajectoryPenalty(
            divergence=1.0, jacobian=1.0, power=config.power, exact=config.exact
        )

    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        x, target = batch
        trajectory = self.trajectory(x)
        loss = (trajectory.states[-1, :, 1] - target).square().mean()
        penalty = self.penalty(self.block.field, trajectory)
        assert penalty.mean_divergence is not None
        return {
            "loss": loss,
            "divergence": penalty.divergence,
            "unweighted_divergence": penalty.mean_divergence,
            "jacobian": penalty.jacobian,
            "total": loss + self.config.alpha_div * penalty.divergence + self.config.alpha_jac * penalty.jacobian,
        }

    def plateau(self) -> Mapping[str, Any] | None:
        if self.config.schedule == "constant":
            return None
        return {"factor": 0.7, "patience": 50, "cooldown": 50, "threshold": 1e-4, "min_lr": 1e-6}

    def measure(self, batches: Any) -> Metrics:
        ((x, target),) = batches
        exact = rs.regularizers.TrajectoryPenalty(divergence=1.0, jacobian=1.0, power=self.config.power, exact=True)
        with torch.no_grad():
            trajectory = self.block.trajectory(x)
            states = trajectory.states
            penalty = exact(self.block.field, trajectory)
        assert penalty.mean_divergence is not None
        spectrum = rs.analysis.jacobian_spectrum(self.block.field, trajectory.times, states)
        growth = rs.analysis.theta_stability(self.config.theta, spectrum).abs()
        return {
            "mse": (states[-1, :, 1] - target).square().mean().item(),
            "divergence": penalty.divergence.item(),
            "unweighted_divergence": penalty.mean_divergence.item(),
            "jacobian": penalty.jacobian.item(),
            "largest_eigenvalue": spectrum.abs().max().item(),
            "leftmost_eigenvalue": spectrum.real.min().item(),
            "largest_growth": growth.max().item(),
            "band_ratio": self._band_ratio(),
            "sign_flips": sign_flips(states[:, :, 1]),
            "iterations": mean_steps(trajectory.solutions),
            **self._paper_s_iterations(x),
            "restarts": self.restarts,
        }

    @torch.no_grad()
    def _band_ratio(self) -> float:
        """The mean distance of the two edges of the band after the last layer, relative to the start."""
        x = torch.linspace(-6, 6, 121)
        upper, lower = (self.block(augment(x, edge)) for edge in (BAND, -BAND))
        return torch.linalg.vector_norm(upper - lower, dim=1).mean().item() / (2 * BAND)

    @torch.no_grad()
    def _paper_s_iterations(self, x: Tensor) -> Metrics:
        """Iterations of L-BFGS that starts at the layer's input. A failed solve counts with all of its steps."""
        settings = {"solver": rs.LBFGS(memory=10), "stopping": _PAPER_STOPPING, "on_failure": "ignore"}
        solutions = _block(self.block.field, self.config.theta, **settings).trajectory(x).solutions
        unsolved = sum(int((solution.status != rs.Status.CONVERGED).sum()) for solution in solutions)
        return {"lbfgs_iterations": mean_steps(solutions), "lbfgs_unsolved": unsolved}


def _block(field: Any, theta: float, **solving: Any) -> rs.ThetaBlock:
    return rs.ThetaBlock(field, theta=theta, num_steps=LAYERS, horizon=float(LAYERS), **solving)
