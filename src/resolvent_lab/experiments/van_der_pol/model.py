"""The stiff van der Pol oscillator, learned in its state variables as a circuit.

    x' = mu (x - x^3 / 3 - w),    w' = x / mu,    mu = 1000

x is the voltage and w the current. A trajectory follows one of two branches of the curve w = x - x^3 / 3 for a time of
order mu, leaves it at its end, and reaches the other one within a time of order 1 / mu.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.schemes.tableaux import RADAU5
from resolvent_lab.experiments.network import Batches, Metrics
from resolvent_lab.experiments.segments import FitConfig, FittedField, Segments, segments_of

ADAPTIVE = "adaptive"
ONE_STEP = {
    "backward Euler": rs.schemes.Theta(1.0),
    "Radau IIA 5": rs.schemes.RungeKutta(RADAU5),
}
"""Methods that make one step for each segment."""
TRAJECTORIES, POINTS, HELD_OUT = 10, 20, 20
FIRST, LAST = 0.03, 1.6
"""The first observation is at FIRST / mu, the last at LAST * mu, about one period."""
PERIODS = 6.0
# The size of the largest error of a segment that counts, with a bounded loss.
_BOUND = 0.1


@dataclass(frozen=True, kw_only=True)
class VanDerPolConfig(FitConfig):
    """method is "adaptive", or the one that makes one step for each segment; bounded says whether the loss of a segment
    is bounded; width is that of both hidden layers."""

    method: str
    bounded: bool = False
    mu: float = 1000.0
    width: int = 16
    epochs: int = 115
    stages: int = 15
    stage_epochs: int = 6

    @property
    def name(self) -> str:
        loss = "-bounded" if self.bounded else ""
        return f"{self.method.replace(' ', '-')}-stages{self.stages}{loss}-seed{self.seed}"


def configs(quick: bool, thetas: Sequence[float] | None, seeds: int) -> list[VanDerPolConfig]:
    if quick:
        short: dict[str, Any] = {"mu": 100.0, "epochs": 40, "stages": 10, "stage_epochs": 3}
        return [VanDerPolConfig(method=ADAPTIVE, bounded=True, seed=seed, **short) for seed in range(seeds)]
    variants: list[dict[str, Any]] = [{"method": ADAPTIVE, "bounded": True}, {"method": ADAPTIVE}]
    variants += [{"method": ADAPTIVE, "stages": 0}]
    variants += [{"method": method} for method in ONE_STEP]
    return [VanDerPolConfig(seed=seed, **variant) for seed in range(seeds) for variant in variants]


class Circuit:
    """The true field."""

    rowwise = autonomous = True

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def __call__(self, t: Tensor | float, y: Tensor) -> Tensor:
        x, w = y.unbind(1)
        return torch.stack([self.mu * (x - x**3 / 3 - w), x / self.mu], 1)


def starts(count: int, generator: torch.Generator | None = None) -> Tensor:
    """States (count, 2) with x in [-2.5, 2.5] and w in [-1, 1]."""
    u = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    return (2 * u - 1) * torch.tensor([2.5, 1.0], dtype=torch.float64)


def trajectories(mu: float, y0: Tensor) -> tuple[Tensor, Tensor]:
    """Times (21, count), equally spaced in their logarithm, and the true states there, (21, count, 2)."""
    later = torch.logspace(math.log10(FIRST / mu), math.log10(LAST * mu), POINTS, dtype=torch.float64)
    times = torch.cat([later.new_zeros(1), later])
    states = rs.odeint(Circuit(mu), y0, times, RADAU5, rtol=1e-7, atol=1e-9).states
    return times[:, None].expand(-1, len(y0)), states


def data(config: VanDerPolConfig) -> Batches:
    return Batches([segments_of(*trajectories(config.mu, starts(TRAJECTORIES)))])


class Scaled(nn.Module):
    """A perceptron with two hidden layers, whose outputs are multiplied by the largest speeds in the data.

    It begins as the zero field.
    """

    rowwise = autonomous = True
    speed: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, 2)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), last)
        self.register_buffer("speed", torch.ones(2))

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        out: Tensor = self.speed * self.net(y)
        return out


class VanDerPol(FittedField):
    """A perceptron, fitted to the ends of the 200 segments between neighbouring points."""

    config: VanDerPolConfig
    field: Scaled

    def __init__(self, config: VanDerPolConfig) -> None:
        super().__init__(config, Scaled(config.width))
        self.batched = config.method == ADAPTIVE

    def prepare(self, segments: Segments) -> None:
        speeds = (segments.end - segments.start).abs() / segments.lengths[:, None]
        self.field.speed.copy_(speeds.amax(0))

    def residuals(self, segments: Segments) -> Tensor:
        return (self._arrive(segments) - segments.end).flatten()

    def objective(self, segments: Segments) -> Tensor:
        """The residuals r of each segment, or r / sqrt(1 + |r|^2 / bound^2).

        A segment that ends shortly before or after a jump may arrive at the wrong branch, at a distance of 3. That
        error has no useful derivative: it hardly depends on when the jump is. Bounded, it does not disturb the others,
        which teach the field when it has to jump.
        """
        residuals = self.residuals(segments)
        if not self.config.bounded:
            return residuals
        errors = residuals.reshape(len(segments.start), -1)
        return (errors / (1 + errors.square().sum(1, keepdim=True) / _BOUND**2).sqrt()).flatten()

    def _arrive(self, segments: Segments) -> Tensor:
        """The states at the ends of the segments, by the method of the training."""
        if self.config.method == ADAPTIVE:
            return self.integrate(segments.start, segments.times, 1e-3, max_steps=300).states[-1]
        block = rs.Block(self.field, ONE_STEP[self.config.method], num_steps=1)
        end: Tensor = block(segments.start, horizon=segments.lengths)
        return end

    def integrate(self, y0: Tensor, times: Tensor, rtol: float, **options: Any) -> Any:
        """The learned field as a differential equation."""
        return rs.odeint(self.field, y0, times, RADAU5, rtol, 0.1 * rtol, **options)

    @torch.no_grad()
    def measure(self, batches: Any) -> Metrics:
        mu = self.config.mu
        y0 = starts(HELD_OUT, torch.Generator().manual_seed(1000 + self.config.seed))
        times, exact = trajectories(mu, y0)
        # Far from the data, a field that was not learned may not be integrable. Such states are NaN.
        found = self.integrate(y0, times, 1e-5, on_failure="ignore", max_steps=2000)
        errors = (found.states - exact)[1:].abs().amax(-1).nan_to_num(torch.inf).flatten()
        true_period, learned_period = period(Circuit(mu), mu), period(self.field, mu)
        return {
            "loss": self.curves["loss"][-1],
            "median_error": errors.quantile(0.5).item(),
            "large_error": errors.quantile(0.9, interpolation="nearest").item(),
            "period": learned_period,
            "period_error": abs(learned_period / true_period - 1),
            "stiffness": _fastest_rate(self.field, exact) / _fastest_rate(Circuit(mu), exact),
        }


def cycle(field: Any, mu: float, count: int = 3001) -> tuple[Tensor, Tensor]:
    """Times up to six mu, and the states from (2, 0) there."""
    times = torch.linspace(0, PERIODS * mu, count, dtype=torch.float64)
    y0 = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    return times, rs.odeint(field, y0, times, RADAU5, 1e-5, 1e-7, on_failure="ignore", max_steps=5000).states[:, 0]


def period(field: Any, mu: float) -> float:
    """The time between the last two sign changes of x from below, from (2, 0); infinite if it does not oscillate."""
    times, states = cycle(field, mu)
    x = states[:, 0]
    rising = ((x[:-1] < 0) & (x[1:] >= 0)).nonzero()[:, 0]
    if len(rising) < 2:
        return math.inf
    # The jump takes less than the distance of two times: its time is known to that.
    return float(times[rising[-1]] - times[rising[-2]])


def _fastest_rate(field: Any, states: Tensor) -> float:
    """The most negative eigenvalue of the derivative of the field, in the median over the last states."""
    last = states[-1]
    rates = [min(torch.linalg.eigvals(matrix).real.tolist()) for matrix in _jacobians(field, last)]
    return float(torch.tensor(rates).median())


def _jacobians(field: Any, y: Tensor) -> Tensor:
    with torch.enable_grad():
        return rs.analysis.Jacobian(lambda state: field(0.0, state), y).matrix().detach()
