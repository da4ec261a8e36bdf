"""Makes trained residual networks with batch norm implicit, at once and by the recipe of docs/training.md.

python benchmarks/conversion.py [--kinds resnet,preactivation] [--seeds 5] [--jobs 1] [--out build/conversion] [--write]

Four residual blocks on scikit-learn's digits. Every run leaves a file, so that an interrupted benchmark goes on where
it was.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import mean, stdev
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn

import resolvent as rs
import runs

CHANNELS, BLOCKS, BATCH = 16, 4, 64
EPOCHS, RATE = 8, 2e-3
# The recipe: an epoch for each theta, at a learning rate that falls to zero along half a cosine, with a penalty on
# slopes that are too steep for the last theta. Two epochs with the penalty alone come first.
THETAS = (0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5)
FINE_TUNING_RATE = 1e-3
# The penalty is evaluated for this many samples of a batch.
PENALISED = 16
# Networks that are converted and nothing else are tested with this many images: what has no solution is slow.
TESTED = 60


class BasicBlock(nn.Module):
    """As in ResNet: relu behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(), nn.BatchNorm2d(CHANNELS)
        self.conv2, self.bn2 = convolution(), nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class PreActivation(nn.Module):
    """Batch norm and relu before each convolution, nothing behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(CHANNELS), convolution()
        self.bn2, self.conv2 = nn.BatchNorm2d(CHANNELS), convolution()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(torch.relu(self.bn2(self.conv1(torch.relu(self.bn1(x))))))


KINDS: dict[str, tuple[type[nn.Module], str]] = {
    "resnet": (BasicBlock, "as in ResNet, relu behind the sum"),
    "preactivation": (PreActivation, "pre-activation"),
}


def convolution() -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)


def resnet(block: type[nn.Module]) -> nn.Sequential:
    stem = (nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))
    return nn.Sequential(*stem, *(block() for _ in range(BLOCKS)), *head)


@dataclasses.dataclass(frozen=True)
class Data:
    """Images and labels, for training and held out."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(seed: int) -> Data:
    pixels, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(x) * 4 // 5], order[len(x) * 4 // 5 :]
    return Data((x[train], y[train]), (x[test], y[test]))


def convert(
    trained: nn.Module, block: type[nn.Module], theta: float, max_steps: int | None = None, **options: Any
) -> nn.Module:
    """A copy with weights of its own."""
    return rs.make_implicit(
        copy.deepcopy(trained),
        theta,
        predicate=lambda _, module: isinstance(module, block),
        stopping=rs.Stopping(rtol=1e-3, max_steps=max_steps),
        **options,
    )


class Slopes:
    """The penalty on the slopes of all implicit blocks of a network at their last inputs and outputs."""

    def __init__(self, network: nn.Module) -> None:
        self._penalty = rs.regularizers.Solvability(theta=THETAS[-1])
        self._last: dict[rs.ThetaBlock, Tensor] = {}
        for module in network.modules():
            if isinstance(module, rs.ThetaBlock):
                module.register_forward_hook(self._keep)

    def _keep(self, block: rs.ThetaBlock, inputs: tuple[Tensor], output: Tensor) -> None:
        self._last[block] = torch.stack([inputs[0][:PENALISED], output[:PENALISED]])

    def __call__(self) -> Tensor:
        times = torch.tensor([0.0, 1.0])
        found = [self._penalty(block.field, rs.blocks.Trajectory(times, y, ())) for block, y in self._last.items()]
        return torch.stack(found).sum()


def train_epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, data: Data, penalty: Callable[[], Tensor] | None = None
) -> None:
    x, y = data.train
    for rows in torch.randperm(len(x)).split(BATCH):
        loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
        if penalty is not None:
            loss = loss + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fine_tune(network: nn.Module, thetas: Sequence[float], data: Data, penalty: Slopes | None = None) -> float:
    """One epoch for each theta. Returns the seconds of an epoch."""
    network.eval()  # Batch norm uses its running statistics, so that the branches are functions.
    optimizer = torch.optim.Adam(network.parameters(), FINE_TUNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(thetas))
    began = time.process_time()
    for theta in thetas:
        for module in network.modules():
            if isinstance(module, rs.ThetaBlock):
                module.theta = theta
        train_epoch(network, optimizer, data, penalty)
        schedule.step()
    return (time.process_time() - began) / len(thetas)


def accuracy(network: nn.Module, data: Data) -> float:
    x, y = data.test
    network.eval()
    with torch.no_grad():
        return 100 * (network(x).argmax(1) == y).double().mean().item()


def converted(trained: nn.Module, block: type[nn.Module], theta: float, data: Data) -> tuple[float, float]:
    """The accuracy without fine-tuning, and the percentage of samples that have an equation which was not solved. These
    keep the best iterate. A few Newton steps alone: the fallbacks take minutes for equations without a solution."""
    data = Data(data.train, (data.test[0][:TESTED], data.test[1][:TESTED]))
    unsolved = torch.zeros(len(data.test[0]), dtype=torch.bool)

    def observe(solution: rs.Solution) -> None:
        unsolved.logical_or_(~solution.converged)

    solver = rs.NewtonKrylov(inner_steps=10)
    network = convert(trained, block, theta, max_steps=10, solver=solver, on_failure="ignore")
    for module in network.modules():
        if isinstance(module, rs.ThetaBlock):
            module.options = dataclasses.replace(module.options, observe=observe)
    return accuracy(network, data), 100 * unsolved.double().mean().item()


def run(kind: str, seed: int) -> runs.Found:
    """An explicit training, and what its network becomes."""
    block, data = KINDS[kind][0], digits(seed)
    torch.manual_seed(seed)
    trained = resnet(block)
    optimizer = torch.optim.Adam(trained.parameters(), RATE)
    began = time.process_time()
    for _ in range(EPOCHS):
        train_epoch(trained, optimizer, data)
    seconds = (time.process_time() - began) / EPOCHS
    explicit = copy.deepcopy(trained)
    fine_tune(explicit, [0.0] * len(THETAS), data)
    found: runs.Found = {
        "explicit": accuracy(trained, data),
        "fine-tuned": accuracy(explicit, data),
        "quarter": converted(trained, block, 0.25, data),
        "half": converted(trained, block, 0.5, data),
    }
    ramped = convert(trained, block, 0.0)
    try:
        cost = fine_tune(ramped, THETAS, data, Slopes(ramped)) / seconds
        return {**found, "ramped": accuracy(ramped, data), "cost": cost}
    except rs.ResolventError as error:
        return {**found, "error": f"{type(error).__name__}: {error}".split("\n")[0]}


def combinations(kinds: list[str], seeds: int) -> Iterator[tuple[str, int]]:
    for kind in kinds:
        for seed in range(seeds):
            yield kind, seed


def table(results: dict[tuple[str], list[runs.Found]]) -> str:
    lines = [
        "| blocks | seeds | explicit | explicit, fine-tuned | converted, theta 1/4 | converted, 1/2 | ramped to 1/2 | "
        "change, worst | errors | time of an epoch |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (kind,), trainings in results.items():
        finished = [found for found in trainings if "error" not in found]
        changes = [found["ramped"] - found["explicit"] for found in finished]
        change = f"{mean(changes):+.1f}, {min(changes):+.1f}" if finished else "-"
        cost = f"{mean(found['cost'] for found in finished):.0f}" if finished else "-"
        lines.append(
            f"| {KINDS[kind][1]} | {len(trainings)} | {_spread([found['explicit'] for found in trainings])} | "
            f"{_spread([found['fine-tuned'] for found in trainings])} | "
            f"{_converted([found['quarter'] for found in trainings])} | "
            f"{_converted([found['half'] for found in trainings])} | "
            f"{_spread([found['ramped'] for found in finished])} | {change} | "
            f"{len(trainings) - len(finished)} | {cost} |"
        )
    return "\n".join(lines)


def _converted(pairs: list[tuple[float, float]]) -> str:
    return f"{_spread([score for score, _ in pairs])} ({mean(unsolved for _, unsolved in pairs):.0f} % unsolved)"


def _spread(scores: list[float]) -> str:
    if not scores:
        return "-"
    return f"{mean(scores):.1f} ± {stdev(scores) if len(scores) > 1 else 0.0:.1f}"


def main() -> None:
    parser = runs.parser(__doc__, 5, "build/conversion")
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    wanted = list(combinations(arguments.kinds.split(","), arguments.seeds))
    runs.run_all(run, wanted, arguments.out, arguments.jobs)
    found = table(runs.collect(wanted, arguments.out))
    runs.show(found, "training.md", "conversion", arguments.write)


if __name__ == "__main__":
    main()
