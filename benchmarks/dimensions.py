"""What implicit layers cost around a network of one's own, by the number of unknowns of a sample.

python benchmarks/dimensions.py [--rounds 7] [--write]

Four layers, `rs.ThetaBlock(rs.Autonomous(network), theta, num_steps=4, horizon=1.0)`, nothing declared, default
tolerance (1e-6 in single precision), one thread. The networks are drawn with several activations and seeds, so that no
number rests on one field. The time of a training step is divided by that of the explicit layers; both take turns.
"""

import argparse
import time
from itertools import product
from statistics import median

import torch
from torch import Tensor, nn

import resolvent as rs
from runs import show

LAYERS, HORIZON = 4, 1.0
ACTIVATIONS = (nn.Tanh, nn.GELU, nn.ReLU)


class Explicit(nn.Module):
    """The same layers with theta = 0, as a plain loop."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(LAYERS):
            x = x + HORIZON / LAYERS * self.network(x)
        return x


def network(unknowns: int, activation: type[nn.Module], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    width = max(unknowns, 16)
    return nn.Sequential(
        nn.Linear(unknowns, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, unknowns)
    )


def seconds(model: nn.Module, x: Tensor, steps: int) -> float:
    """The processor time of a training step."""
    start = time.process_time()
    for _ in range(steps):
        model.zero_grad()
        model(x).square().mean().backward()
    return (time.process_time() - start) / steps


def ratio(unknowns: int, batch: int, theta: float, rounds: int) -> list[float]:
    """The medians over the rounds, one for each network."""
    found = []
    for seed, activation in enumerate(ACTIVATIONS):
        net = network(unknowns, activation, seed)
        implicit = rs.ThetaBlock(rs.Autonomous(net), theta, num_steps=LAYERS, horizon=HORIZON)
        explicit, x = Explicit(net), torch.randn(batch, unknowns)
        for model in (implicit, explicit):
            seconds(model, x, 3)
        steps = max(2, round(0.05 / seconds(implicit, x, 2)))
        found.append(median(seconds(implicit, x, steps) / seconds(explicit, x, 3 * steps) for _ in range(rounds)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = list(product((0.5, 1.0), (64, 256)))
    head = " | ".join(f"theta = {theta:g}, batch {batch}" for theta, batch in columns)
    lines = [f"| unknowns | {head} |", "|---" * (1 + len(columns)) + "|"]
    for unknowns in (2, 8, 16, 32, 64, 128, 256):
        cells = []
        for theta, batch in columns:
            found = ratio(unknowns, batch, theta, arguments.rounds)
            cells.append(f"{median(found):.1f} ({min(found):.1f}-{max(found):.1f})")
        lines.append(f"| {unknowns} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    show("\n".join(lines), "speed.md", "dimensions", arguments.write)


if __name__ == "__main__":
    main()
