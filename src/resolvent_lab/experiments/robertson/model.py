"""Robertson's reaction, learned from fifty points.

    a' = -0.04 a + 10^4 b c,    b' = 0.04 a - 10^4 b c - 3 10^7 b^2,    c' = 3 10^7 b^2

Five trajectories to t = 10^5 are observed ten times each. The species a and c are of size 1, b is of size 10^-5.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.schemes.tableaux import RADAU5
from resolvent_lab.experiments.network import Batches, Metrics
from resolvent_lab.experiments.robertson.peer import dopri5
from resolvent_lab.experiments.segments import FitConfig, FittedField, Segments, segments_of

SPECIES = ("a", "b", "c")
TRAJECTORIES, POINTS, HELD_OUT = 5, 10, 20
FIRST, LAST = -5.0, 5.0
"""Powers of ten of the observation times."""
_FLOOR = 1e-5
# The logarithm of all rates at the start. Rates that are too fast for the data hide each other in equilibria.
_SLOW = -6.0
# Below this part of the largest value, errors of a species count absolutely.
_RESOLUTION = 1e-3


@dataclass(frozen=True, kw_only=True)
class RobertsonConfig(FitConfig):
    """width is that of the hidden layer; peer_end is the time to which dopri5 integrates the learned field."""

    width: int = 4
    epochs: int = 180
    stages: int = 10
    stage_epochs: int = 5
    smoothing: int = 60
    peer_end: float = 1.0


def configs(quick: bool, thetas: Sequence[float] | None, seeds: int) -> list[RobertsonConfig]:
    changes: dict[str, Any] = (
        {"epochs": 24, "stages": 8, "stage_epochs": 2, "smoothing": 4, "peer_end": 0.1} if quick else {}
    )
    return [RobertsonConfig(seed=seed, **changes) for seed in range(seeds)]


def truth(t: Tensor | float, y: Tensor) -> Tensor:
    """The reaction, whose rates differ by nine orders of magnitude."""
    a, b, c = y.unbind(1)
    slow, back, fast = 0.04 * a, 1e4 * b * c, 3e7 * b * b
    return torch.stack([back - slow, slow - back - fast, fast], 1)


truth.rowwise = True  # type: ignore[attr-defined]


def solutions(y0: Tensor, times: Tensor) -> Tensor:
    """True states at these times, to eight digits."""
    return rs.odeint(truth, y0, times, RADAU5, rtol=1e-9, atol=1e-14).states


def starts(count: int, generator: torch.Generator | None = None) -> Tensor:
    """Initial states (count, 3) with a in [0.5, 1], c in [0, 0.5] and b = 0."""
    u = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    return torch.stack([1 - 0.5 * u[:, 0], torch.zeros_like(u[:, 0]), 0.5 * u[:, 1]], 1)


def observations() -> tuple[Tensor, Tensor]:
    """Times (11, 5) and states (11, 5, 3): the first trajectory starts at (1, 0, 0), the others at random states. The
    times are equally spaced in their logarithm, and those of one trajectory lie between those of the others."""
    y0 = starts(TRAJECTORIES)
    y0[0] = torch.tensor([1.0, 0.0, 0.0])
    place = torch.arange(POINTS)[:, None] + (torch.arange(TRAJECTORIES) + 0.5) / TRAJECTORIES
    later = 10 ** (FIRST + (LAST - FIRST) * place.double() / POINTS)
    times = torch.cat([torch.zeros_like(later[:1]), later])
    return times, solutions(y0, times)


def data(config: RobertsonConfig) -> Batches:
    return Batches([segments_of(*observations())])


def held_out(config: RobertsonConfig) -> tuple[Tensor, Tensor]:
    """Initial states (20, 3) that are not those of the data, and 41 times."""
    times = torch.logspace(FIRST, LAST, 4 * POINTS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1000 + config.seed)
    return starts(HELD_OUT, generator), torch.cat([times.new_zeros(1), times])


class Transfers(nn.Module):
    """y_i' = sum_j (r_ji - r_ij), where r_ij = (y_i / s_i) exp(N_ij(log(y / s))) is what species i turns into j.

    N is a perceptron with one hidden layer and a linear bypass. The scales s are the largest values in the data.
    Whatever its weights are, the sum of the species is constant, and none becomes negative. A reaction of mass action
    is a linear N.
    """

    rowwise = autonomous = True
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, 6)
        self.curved = nn.Sequential(nn.Linear(3, width), nn.Tanh(), last)
        self.straight = nn.Linear(3, 6)
        for parameter in (last.weight, last.bias, self.straight.weight):
            nn.init.zeros_(parameter)
        nn.init.constant_(self.straight.bias, _SLOW)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        scaled = y / self.scale
        logs = (scaled.clamp(min=0) + _FLOOR).log() / 2
        ab, ac, ba, bc, ca, cb = (self.curved(logs) + self.straight(logs)).exp().unbind(1)
        a, b, c = scaled.unbind(1)
        to_b, to_c, onward = ab * a - ba * b, ac * a - ca * c, bc * b - cb * c
        return torch.stack([-to_b - to_c, to_b - onward, to_c + onward], 1)


class Robertson(FittedField):
    """Transfers, fitted to the ends of the fifty segments between neighbouring points."""

    config: RobertsonConfig
    field: Transfers

    def __init__(self, config: RobertsonConfig) -> None:
        super().__init__(config, Transfers(config.width))

    def prepare(self, segments: Segments) -> None:
        self.field.scale.copy_(segments.end.abs().amax(0))

    def residuals(self, segments: Segments) -> Tensor:
        """Differences of logarithms, so that all species count alike."""
        end = self.integrate(segments.start, segments.times, 1e-3, max_steps=100).states[-1]
        least = _RESOLUTION * self.field.scale
        return ((end.clamp(min=0) + least) / (segments.end + least)).log().flatten()

    def objective(self, segments: Segments) -> Tensor:
        """The residuals, and at the end of the training a penalty on the output weights of the hidden layer.

        Many networks fit the fifty points. They differ at states that the five trajectories do not pass, such as a
        small b beside a small c. The penalty chooses one with little curvature among them.
        """
        residuals, ridge = self.residuals(segments), self.config.ridge(self.current_epoch)
        if ridge == 0:
            return residuals
        curvature: Tensor = self.field.curved[-1].weight  # type: ignore[assignment]
        return torch.cat([residuals, ridge * curvature.flatten()])

    def integrate(self, y0: Tensor, times: Tensor, rtol: float, **options: Any) -> Any:
        """The learned field, integrated with a tolerance relative to the size of each species."""
        return rs.odeint(self.field, y0, times, RADAU5, rtol, 0.01 * rtol * self.field.scale, **options)

    @torch.no_grad()
    def measure(self, batches: Any) -> Metrics:
        y0, times = held_out(self.config)
        exact = solutions(y0, times)
        began = time.process_time()
        found = self.integrate(y0, times, 1e-5)
        seconds = time.process_time() - began
        errors = ((found.states - exact).abs() / exact.amax(0)).amax((0, 1))
        return {
            "loss": self.curves["loss"][-1],
            "errors": errors.tolist(),
            "worst_error": errors.max().item(),
            "evaluations": found.evaluations,
            "seconds": seconds,
            "peer": self._beside_dopri5(y0),
        }

    def _beside_dopri5(self, y0: Tensor) -> dict[str, Any]:
        """Calls and seconds of the processor up to `peer_end`, at a relative tolerance of 1e-5; no entry for dopri5 if
        torchdiffeq is not installed."""
        end, atol = self.config.peer_end, 1e-7 * self.field.scale
        began = time.process_time()
        found = self.integrate(y0, torch.tensor([0.0, end], dtype=torch.float64), 1e-5)
        costs = {"odeint": {"evaluations": found.evaluations, "seconds": time.process_time() - began}}
        cost = dopri5(self.field, y0, end, 1e-5, atol)
        return costs if cost is None else {**costs, "dopri5": cost}
