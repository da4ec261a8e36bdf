"""Counts what starting guesses and reuse save along a trajectory, for the table of "blocks" in the documentation.

python benchmarks/guesses.py [--write]
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import ThetaBlock
from resolvent.extending import Solver
from resolvent.fields import MLP, Bounded, Field

PAGE = Path(__file__).parent.parent / "docs" / "blocks.md"
BEGIN, END = "<!-- guesses: begin -->", "<!-- guesses: end -->"
SOLVERS = [rs.Newton(), rs.solvers.Chord(), rs.Broyden(), rs.Anderson(), rs.Picard()]
VARIANTS = [
    ("previous", False),
    ("explicit", False),
    ("extrapolate", False),
    ("previous", True),
    ("extrapolate", True),
]


class Counted(Field):
    """Counts the calls of a field."""

    rowwise = True

    def __init__(self, field: Callable[[float | Tensor, Tensor], Tensor], linear_part: float | None = None) -> None:
        super().__init__()
        self.inner = field
        self.declared = linear_part
        self.calls = 0

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(t, y)

    @property
    def linear_part(self) -> float | None:
        return self.declared


def lotka_volterra(t: float | Tensor, y: Tensor) -> Tensor:
    a, b = y.unbind(1)
    return torch.stack((2 / 3 * a - 4 / 3 * a * b, a * b - b), dim=1)


def learned() -> Field:
    """A field as it is learned: eight dimensions, slopes in a disc about [-25, -15] as in the paper's stiff example."""
    field = MLP(8, 16, 2, activation=nn.Tanh(), bound=1.0)
    return Bounded(field, -25.0, -15.0, scale=0.9)


def heat(t: float | Tensor, y: Tensor) -> Tensor:
    """A reaction and diffusion on 64 points: stiff, with too many unknowns for a dense Jacobian."""
    diffusion = 200 * (y.roll(1, 1) - 2 * y + y.roll(-1, 1))
    return diffusion + y - y**3


def problems() -> dict[str, tuple[Counted, Tensor, int, float]]:
    """The field, the first states, the number of steps and the horizon of each."""
    points = torch.linspace(0, 6.28, 64, dtype=torch.float64)
    waves = torch.stack([torch.sin(k * points) + 0.3 * torch.cos(3 * points + k) for k in range(1, 5)])
    bounded = learned().double()
    return {
        "Lotka-Volterra, 2 unknowns, h = 0.2": (
            Counted(lotka_volterra),
            torch.tensor([[1.0, 1.0 + 0.2 * k] for k in range(5)], dtype=torch.float64),
            50,
            10.0,
        ),
        "bounded MLP, 8 unknowns, slopes in [-25, -15], h = 0.02": (
            Counted(bounded, bounded.linear_part),
            torch.randn(16, 8, dtype=torch.float64),
            50,
            1.0,
        ),
        "reaction-diffusion, 64 unknowns, slopes to -800, h = 0.01": (Counted(heat), waves, 50, 0.5),
    }


def cost(field: Counted, x: Tensor, num_steps: int, horizon: float, solver: Solver, guess: str, reuse: bool) -> str:
    """Evaluations of the field per step, and how many of these came with a Jacobian."""
    block = ThetaBlock(field, 0.5, num_steps, horizon, solver=solver, guess=guess, reuse=reuse)
    field.calls = 0
    try:
        with torch.no_grad():
            solutions = block.trajectory(x).solutions
    except rs.ConvergenceError:
        return "*fails*"
    jacobians = sum(solution.vjps for solution in solutions) / num_steps
    return f"{field.calls / num_steps:.1f}" + (f" ({jacobians:.1f})" if jacobians else "")


def table() -> str:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = [type(solver).__name__ for solver in SOLVERS]
    lines = [f"| guess | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for title, problem in problems().items():
        lines.append(f"| **{title}** |" + " |" * len(names))
        for guess, reuse in VARIANTS:
            costs = [cost(*problem, solver, guess, reuse) for solver in SOLVERS]
            lines.append(f"| {guess}{', reuse' if reuse else ''} | {' | '.join(costs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    text = table()
    print(text)
    if parser.parse_args().write:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
