"""Measures what the divergence penalty adds to a training step of the paper's MNIST network.

    python benchmarks/penalty.py [--theta 0.5] [--repeats 15]

A plain step and penalised ones take turns, so that whatever else the machine does falls on all of them alike. Each
repeat gives one ratio; the table has their median and quartiles. The images are random: a solve takes about as long as
on real ones.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from resolvent.blocks import ThetaBlock
from resolvent.fields import Bounded, Conv, Piecewise
from resolvent.regularizers import TrajectoryPenalty

STAGES = ((8, 14), (16, 7), (32, 4), (64, 2))
LAYERS = 2
PENALTIES = {
    "divergence": TrajectoryPenalty(divergence=0.01),
    "divergence and Jacobian": TrajectoryPenalty(divergence=0.01, jacobian=0.1),
    "all three": TrajectoryPenalty(divergence=0.01, jacobian=0.1, variation=0.1),
    "divergence, through the states": TrajectoryPenalty(divergence=0.01, detach=False),
}


class Network(nn.Module):
    """A 7x7 convolution, four stages of two theta layers with strided convolutions between, and a linear classifier."""

    def __init__(self, theta: float) -> None:
        super().__init__()
        channels = [c for c, _ in STAGES]
        self.stem = nn.Conv2d(1, channels[0], 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(ThetaBlock(layers(c, size), theta, LAYERS, float(LAYERS)) for c, size in STAGES)
        self.between = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(channels))
        self.head = nn.Linear(channels[-1], 10)

    def forward(self, x: Tensor, penalty: TrajectoryPenalty | None) -> tuple[Tensor, Tensor]:
        y, total = self.stem(x), x.new_zeros(())
        for block, after in zip(self.blocks, [*self.between, nn.Identity()], strict=True):
            trajectory = block.trajectory(y)
            if penalty is not None:
                total = total + penalty(block.field, trajectory).total
            y = after(trajectory.states[-1])
        return self.head(y.mean((2, 3))), total


def layers(channels: int, size: int) -> Piecewise:
    """F^{-3,1} of two convolutions, with weights of its own for each layer."""
    fields = [Bounded(Conv(channels, 2, size=(size, size), bound=1.0), -3.0, 1.0) for _ in range(LAYERS)]
    return Piecewise(fields)


def trainer(network: Network, images: Tensor, labels: Tensor) -> Callable[[TrajectoryPenalty | None], float]:
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step(penalty: TrajectoryPenalty | None) -> float:
        start = time.perf_counter()
        optimiser.zero_grad()
        logits, total = network(images, penalty)
        (cross_entropy(logits, labels) + total).backward()
        optimiser.step()
        return time.perf_counter() - start

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theta", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| theta | penalty | plain step, ms | ratio: median | quartiles |\n|---|---|---|---|---|")
    images, labels = torch.rand(options.batch, 1, 28, 28), torch.randint(10, (options.batch,))
    for theta in options.theta:
        step = trainer(Network(theta), images, labels)
        for penalty in (None, *PENALTIES.values()):
            step(penalty)
        rounds = [[step(penalty) for penalty in (None, *PENALTIES.values())] for _ in range(options.repeats)]
        plain = statistics.median(times[0] for times in rounds)
        for k, name in enumerate(PENALTIES, start=1):
            low, middle, high = statistics.quantiles([times[k] / times[0] for times in rounds], n=4)
            print(f"| {theta} | {name} | {1e3 * plain:.0f} | {middle:.2f} | {low:.2f} to {high:.2f} |", flush=True)


if __name__ == "__main__":
    main()
