"""A pendulum over 1,000 periods: the drift of its energy by equal steps, for a table of the documentation.

    python benchmarks/pendulum.py [--write]

The field is learned from states and slopes, by a network that is the gradient of an energy: it keeps its own energy
exactly, so that all drift is that of the scheme.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.schemes import tableaux

PAGE = Path(__file__).parent.parent / "docs" / "odeint.md"
BEGIN, END = "<!-- pendulum: begin -->", "<!-- pendulum: end -->"
PERIODS, STEPS = 1000, 40  # steps per period
SCHEMES = {
    "explicit Euler": rs.schemes.Theta(0.0),
    "backward Euler": rs.schemes.Theta(1.0),
    "implicit midpoint": rs.schemes.Theta(0.5),
    "Stoermer-Verlet": rs.schemes.VERLET,
    "classical Runge-Kutta": rs.schemes.RungeKutta(tableaux.RK4),
}


class Learned(nn.Module):
    """H(q, p) = T(p) + V(q), both by small networks; the field is (dH/dp, -dH/dq)."""

    rowwise = autonomous = True

    def __init__(self) -> None:
        super().__init__()
        self.kinetic, self.potential = (
            nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1, bias=False)) for _ in range(2)
        )

    def energy(self, y: Tensor) -> Tensor:
        q, p = y[:, :1], y[:, 1:]
        return (self.kinetic(p) + self.potential(q))[:, 0]

    def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
        return _slope(self.kinetic, p)

    def force(self, t: float | Tensor, q: Tensor) -> Tensor:
        return -_slope(self.potential, q)

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y[:, :1], y[:, 1:]

    def join(self, q: Tensor, p: Tensor) -> Tensor:
        return torch.cat([q, p], 1)

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        q, p = self.split(y)
        return self.join(self.velocity(t, p), self.force(t, q))


def _slope(energy: nn.Sequential, x: Tensor) -> Tensor:
    """The derivative of a network with one hidden layer, in closed form."""
    first, _, last = energy
    hidden = torch.tanh(first(x))
    return (1 - hidden**2) * last.weight @ first.weight


def pendulum(y: Tensor) -> Tensor:
    return torch.stack([y[:, 1], -torch.sin(y[:, 0])], 1)


def learn(steps: int = 3000) -> Learned:
    """Learns the field from its values at random states with |q| and |p| up to 2."""
    torch.manual_seed(0)
    field = Learned()
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        y = 4 * torch.rand(128, 2) - 2
        loss = (field(0.0, y) - pendulum(y)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"learned to {loss.sqrt().item():.1e}")
    return field


@torch.no_grad()
def drift(field: Learned, scheme: rs.schemes.Scheme) -> tuple[float, float, float]:
    """The largest relative change of the energy above its minimum after 1, 30 and 1,000 periods."""
    lowest = field.energy(torch.zeros(1, 2))
    start = torch.tensor([[1.0, 0.0], [1.5, 0.0]])
    height = field.energy(start) - lowest
    block = rs.Block(field, scheme, num_steps=STEPS, horizon=2 * torch.pi, stopping=rs.Stopping(rtol=1e-10, atol=1e-11))
    worst, found, y = 0.0, [], start
    for period in range(1, PERIODS + 1):
        y = block(y)
        worst = max(worst, float(((field.energy(y) - lowest) / height - 1).abs().max()))
        if period in (1, 30, PERIODS):
            found.append(worst)
    return found[0], found[1], found[2]


def table() -> str:
    field = learn()
    lines = [
        f"| scheme, {STEPS} steps per period | after 1 period | 30 periods | {PERIODS:,} periods | seconds |",
        "|---|---|---|---|---|",
    ]
    for name, scheme in SCHEMES.items():
        begin = time.process_time()
        changes = drift(field, scheme)
        cells = " | ".join(f"{change:.1e}" if change < 0.1 else f"{change:.2g}" for change in changes)
        lines.append(f"| {name} | {cells} | {time.process_time() - begin:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    found = table()
    print(found)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.split(END)[1]}", encoding="utf-8")
