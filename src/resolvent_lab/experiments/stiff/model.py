"""Example 2: the flow of a stiff equation, learned by twenty layers with separate weights.

    z' = -20 (z - cos min(t, 2))

Trajectories of length 2 start at times in [0, 2]. After t = 2 forcing and layer stay constant. The slopes of the field
lie in [-25, -15] by construction; the true slope is -20.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.experiments.network import Batches, Config, Metrics, Network, sign_flips
from resolvent_lab.problems import HORIZON, RATE
from resolvent_lab.problems import stiff_solution as exact

THETAS = (0.0, 0.5, 1.0)
POINTS = (2, 4, 10)
LAYERS = 20
LOW, HIGH = -25.0, -15.0
STEP = HORIZON / LAYERS
IN_A_CELL = 5
FINE_STEPS = 4000
"""Steps of RK4 over the horizon, for the learned field as a differential equation."""


@dataclass(frozen=True, kw_only=True)
class StiffConfig(Config):
    """points is the number of points compared per trajectory; variation is the weight of differences between layers."""

    points: int
    variation: float = 0.1
    epochs: int = 50
    learning_rate: float = 1e-2
    always: bool = True

    @property
    def name(self) -> str:
        return f"theta{self.theta:g}-points{self.points}-seed{self.seed}"


def configs(quick: bool, thetas: Sequence[float] | None, seeds: int) -> list[StiffConfig]:
    # The short training takes larger steps and compares the most points.
    changes: dict[str, Any] = {"epochs": 12, "learning_rate": 3e-2} if quick else {}
    return [
        StiffConfig(theta=theta, points=points, seed=seed, **changes)
        for seed in range(seeds)
        for theta in thetas or THETAS
        for points in ((10,) if quick else POINTS)
    ]


def predicted_slope(theta: float) -> float:
    """The slope in [-25, -15] that fits the flow over a step best."""
    exact_fit = rs.analysis.theta_stability_inverse(theta, torch.tensor(math.exp(-RATE * STEP))) / STEP
    return min(max(float(exact_fit.real), LOW), HIGH)


def data(config: StiffConfig) -> Batches:
    """One batch for each time cell: five starting times in it, and the states at all layers, (21, 5)."""
    starts = (torch.arange(LAYERS).repeat_interleave(IN_A_CELL) + torch.rand(LAYERS * IN_A_CELL)) * STEP
    values = torch.rand(LAYERS * IN_A_CELL) * 2 - 0.5
    starts[0] = values[0] = 0.0
    grid = starts + STEP * torch.arange(LAYERS + 1)[:, None]
    states = exact(grid, starts, values)
    return Batches(list(zip(starts.split(IN_A_CELL), states.split(IN_A_CELL, dim=1), strict=True)), shuffle=True)


class Stiff(Network):
    """Twenty layers of 53 parameters: 52 of the perceptron, and the scale of the bounded field."""

    config: StiffConfig

    def __init__(self, config: StiffConfig) -> None:
        super().__init__(config)

        def layer() -> rs.fields.Field:
            mlp = rs.fields.MLP(1, 4, 2, activation=nn.ReLU(), bound=1.0, always=config.always, init=config.init)
            return rs.fields.Bounded(mlp, LOW, HIGH)

        self.field = rs.fields.Piecewise([layer() for _ in range(LAYERS)])
        self.block = rs.ThetaBlock(self.field, theta=config.theta, num_steps=LAYERS, horizon=HORIZON)
        self.penalty = rs.regularizers.TrajectoryPenalty(variation=config.variation)

    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        starts, states = batch
        trajectory = self.trajectory(states[0, :, None], starts)
        compared = slice(LAYERS // self.config.points, None, LAYERS // self.config.points)
        loss = (trajectory.states[compared, :, 0] - states[compared]).square().mean()
        variation = self.penalty(self.field, trajectory).total
        return {"loss": loss, "variation": variation, "total": loss + variation}

    def measure(self, batches: Any) -> Metrics:
        discrete, continuous = self.discrete(), self.continuous(FINE_STEPS)
        slopes = self.slopes()
        growth = rs.analysis.theta_stability(self.config.theta, STEP * slopes).real
        coarse = torch.linspace(0, HORIZON, LAYERS + 1, dtype=torch.float64)
        fine = torch.linspace(0, HORIZON, FINE_STEPS + 1, dtype=torch.float64)
        return {
            "discrete_error": rms_error(coarse, discrete),
            "discrete_error_early": rms_error(coarse, discrete, until=0.5),
            "discrete_error_late": rms_error(coarse, discrete, since=1.0),
            "continuous_error": rms_error(fine, continuous),
            "continuous_error_early": rms_error(fine, continuous, until=0.5),
            "turning_points": sign_flips(discrete[:, None]),
            "slope_low": slopes.min().item(),
            "slope_high": slopes.max().item(),
            "slopes": slopes.mean(1).tolist(),
            "growth_low": growth.min().item(),
            "growth_high": growth.max().item(),
            "evaluations": self._evaluations(batches),
            "restarts": self.restarts,
        }

    @torch.no_grad()
    def discrete(self) -> Tensor:
        """The states after each layer from z(0) = 0, (21,)."""
        return self.block.trajectory(torch.zeros(1, 1)).states[:, 0, 0].double()

    @torch.no_grad()
    def continuous(self, steps: int) -> Tensor:
        """The solution of z' = F(t, z), z(0) = 0, with the learned field, by RK4, (steps + 1,)."""
        scheme = rs.schemes.RungeKutta(rs.schemes.tableaux.RK4)
        solver = rs.Block(self.field, scheme, num_steps=steps, horizon=HORIZON)
        return solver.trajectory(torch.zeros(1, 1)).states[:, 0, 0].double()

    def slopes(self) -> Tensor:
        """The derivative of each layer's field at 41 states in [-0.5, 1.5], (20, 41)."""
        z = torch.linspace(-0.5, 1.5, 41)[:, None]
        spectra = [rs.analysis.jacobian_spectrum(piece, 0.0, z) for piece in self.field.pieces]
        return torch.stack(spectra)[..., 0].real

    @torch.no_grad()
    def _evaluations(self, batches: Any) -> float:
        """Mean evaluations of each layer's field. Layers that are solved together are evaluated together."""
        starts, states = batches[0]
        solutions = self.block.trajectory(states[0, :, None], starts).solutions
        return sum(solution.evaluations for solution in solutions) / len(solutions) if solutions else 1.0


def rms_error(t: Tensor, z: Tensor, since: float = 0.0, until: float = HORIZON) -> float:
    """Root mean square error with respect to the exact solution from z(0) = 0, for times in (since, until]."""
    zero = torch.zeros((), dtype=t.dtype)
    chosen = (t > since - 1e-9) & (t < until + 1e-9) & (t > 0)
    return (z - exact(t, zero, zero))[chosen].square().mean().sqrt().item()
