"""Example 3: periodic orbits of predator and prey, learned and extrapolated far beyond the data.

    z1' = 2/3 z1 - 4/3 z1 z2,      z2' = z1 z2 - z2

Fifty layers with shared weights fit five orbits on [0, 10]. With a step h the field learns f - h (theta - 1/2) f' f
instead of f. It is damped for theta = 0, excited for theta = 1, and right for theta = 1/2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.experiments.network import Batches, Config, Metrics, Network, mean_steps
from resolvent_lab.problems import predator_and_prey as truth

THETAS = (0.0, 0.5, 1.0)
LAYERS, HORIZON = 50, 10.0
FAR = 200.0
STARTS = (1.0, 1.2, 1.4, 1.6, 1.8)
EQUILIBRIUM = (1.0, 0.5)
FINE = 5
"""Steps of RK4 per layer, of 0.04 each, for the learned field as a differential equation."""


@dataclass(frozen=True, kw_only=True)
class LotkaVolterraConfig(Config):
    """Only the settings that are common to all experiments."""

    epochs: int = 3000
    learning_rate: float = 1e-3


def configs(quick: bool, thetas: Sequence[float] | None, seeds: int) -> list[LotkaVolterraConfig]:
    # The short training takes larger steps.
    changes: dict[str, Any] = {"epochs": 300, "learning_rate": 6e-3} if quick else {}
    return [
        LotkaVolterraConfig(theta=theta, seed=seed, **changes) for seed in range(seeds) for theta in thetas or THETAS
    ]


def predicted_coefficient(theta: float) -> float:
    """The coefficient of f' f in the field that layers with this theta learn, up to higher orders in h."""
    return -HORIZON / LAYERS * (theta - 0.5)


def orbits(horizon: float = HORIZON, points: int = LAYERS) -> Tensor:
    """The true orbits to ten digits, (points + 1, 5, 2), float64."""
    z0 = torch.tensor([[1.0, second] for second in STARTS], dtype=torch.float64)

    from scipy.integrate import solve_ivp  # type: ignore[import-untyped]  # the other experiments do not need scipy

    def slopes(t: float, z: Any) -> Any:
        return truth(t, torch.from_numpy(z).reshape(z0.shape)).flatten().numpy()

    times = torch.linspace(0, horizon, points + 1, dtype=torch.float64).numpy()
    solution = solve_ivp(slopes, (0.0, horizon), z0.flatten().numpy(), "DOP853", times, rtol=1e-11, atol=1e-11)
    return torch.from_numpy(solution.y.T.copy()).reshape(points + 1, *z0.shape)


def data(config: LotkaVolterraConfig) -> Batches:
    return Batches([orbits().float()])


class LotkaVolterra(Network):
    """Fifty layers that share 1780 parameters."""

    def __init__(self, config: LotkaVolterraConfig) -> None:
        super().__init__(config)
        field = rs.fields.MLP(2, 20, 4, activation=nn.ReLU(), init=config.init)
        self.block = rs.ThetaBlock(field, theta=config.theta, num_steps=LAYERS, horizon=HORIZON)

    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        states = self.trajectory(batch[0]).states
        loss = (states - batch)[1:].square().sum(-1).mean()
        return {"loss": loss, "total": loss}

    def plateau(self) -> Mapping[str, Any]:
        return {"factor": 0.5, "patience": 50, "cooldown": 50, "threshold": 1e-5}

    def measure(self, batches: Any) -> Metrics:
        (data,) = batches
        points = data.flatten(0, 1).double()
        field = self.block.field
        with torch.no_grad():
            loss = self.terms(data)["loss"].item()
            defect = field(0.0, points.float()).double() - truth(0.0, points)
            solutions = self.block.trajectory(data[0]).solutions
        bend = _directional(points)
        return {
            "loss": loss,
            "coefficient": ((defect * bend).sum() / bend.square().sum()).item(),
            "divergence": _mean_divergence(field, points.float()) - _mean_divergence(truth, points),
            "late_radius": self._late_radius(data[0]),
            "orbit_distance": self._orbit_distance(data[0]),
            "iterations": mean_steps(solutions),
            "restarts": self.restarts,
        }

    @torch.no_grad()
    def extrapolate(self, z0: Tensor) -> Tensor:
        """The states of the layers, continued to t = 200, (1001, batch, 2)."""
        steps = round(FAR / HORIZON * LAYERS)
        # Far from the data the equation of a layer may have no solution. The trajectory then shows where.
        block = rs.ThetaBlock(
            self.block.field, theta=self.config.theta, num_steps=steps, horizon=FAR, on_failure="ignore"
        )
        return block.trajectory(z0).states

    @torch.no_grad()
    def continuous(self, z0: Tensor) -> Tensor:
        """The solution of z' = F(z) with the learned field up to t = 200, at the times of `extrapolate`."""
        points = round(FAR / HORIZON * LAYERS)
        scheme = rs.schemes.RungeKutta(rs.schemes.tableaux.RK4)
        block = rs.Block(self.block.field, scheme, num_steps=FINE * points, horizon=FAR)
        return block.trajectory(z0).states[::FINE]

    def _late_radius(self, z0: Tensor) -> list[float]:
        """Mean distance from the equilibrium after t = 100 in the learned field, relative to the true orbit."""
        centre = torch.tensor(EQUILIBRIUM)
        learned = torch.linalg.vector_norm(self.continuous(z0) - centre, dim=-1)
        true = torch.linalg.vector_norm(orbits(20.0, 1000).float() - centre, dim=-1)
        return (learned[len(learned) // 2 :].mean(0) / true.mean(0)).tolist()

    def _orbit_distance(self, z0: Tensor) -> list[float]:
        """Mean distance of the extrapolated states after t = 100 from the true orbit."""
        states = self.extrapolate(z0)
        curves = orbits(10.0, 1000).float()
        late = states[len(states) // 2 :]
        each = [torch.cdist(late[:, k], curves[:, k]).min(1).values.mean() for k in range(late.shape[1])]
        return torch.stack(each).tolist()


def _directional(points: Tensor) -> Tensor:
    """f' f, the derivative of the true field in its own direction."""
    return torch.func.jvp(lambda z: truth(0.0, z), (points,), (truth(0.0, points),))[1]


def _mean_divergence(field: Any, points: Tensor) -> float:
    return rs.estimators.trace(field, 0.0, points, exact=True).detach().mean().item()
