"""Compares ways to keep the equations of implicit layers solvable in training, for docs/training.md.

python benchmarks/solvability.py [--tasks moons] [--ways free,penalty] [--seeds 10] [--jobs 1] [--mnist FOLDER]
    [--out build/solvability] [--write]

All layers have theta = 1, where trainings are most in danger. Every run leaves a file, so that an interrupted benchmark
goes on where it was.
"""

import dataclasses
import gzip
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev

import torch
from sklearn import datasets
from torch import Tensor, nn

import resolvent as rs
import runs

THETA, LIMIT = 1.0, 0.9
HALVINGS = 3
# The mean square of what slopes may exceed the limit by after an update.
ALLOWED = 1e-3
# Theta has its last value after this fraction of the training.
RAMP = 0.5
WAYS = {
    "explicit": "explicit network, theta = 0",
    "free": "free field, defaults",
    "bounded": "`rs.fields.Bounded`",
    "one-sided": "`rs.fields.OneSided`",
    "penalty": "`rs.regularizers.Solvability`",
    "clipped": "updates clipped at the pole",
    "ramped": "theta ramped up from 0",
}


class Net(nn.Module):
    """Implicit layers between two others."""

    def __init__(self, before: nn.Module, block: rs.ThetaBlock, after: nn.Module) -> None:
        super().__init__()
        self.before, self.block, self.after = before, block, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.block(self.before(x)))

    def with_trajectory(self, x: Tensor) -> tuple[Tensor, rs.blocks.Trajectory]:
        trajectory = self.block.trajectory(self.before(x))
        return self.after(trajectory.states[-1]), trajectory


@dataclasses.dataclass(frozen=True)
class Data:
    """Inputs and targets, for training and held out."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Task:
    """A problem and how it is trained.

    Attributes:
        free, bounded, one_sided: fields with about the same number of weights; the latter two take the largest slope.
        around: the layers before and after the block.
        num_steps, horizon: of the block.
        data: for a seed and the folder of MNIST.
        loss: of outputs and targets.
        score: of held-out data; accuracy, or the mean squared error.
    """

    free: Callable[[], nn.Module]
    bounded: Callable[[float], nn.Module]
    one_sided: Callable[[float], nn.Module]
    around: Callable[[], tuple[nn.Module, nn.Module]]
    num_steps: int
    horizon: float
    data: Callable[[int, Path], Data]
    epochs: int
    batch: int
    learning_rate: float
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    classifies: bool = True

    def network(self, way: str) -> Net:
        high = LIMIT * self.num_steps / (THETA * self.horizon)
        fields = {"bounded": partial(self.bounded, high), "one-sided": partial(self.one_sided, high)}
        before, after = self.around()
        theta = 0.0 if way in ("explicit", "ramped") else THETA
        return Net(before, rs.ThetaBlock(fields.get(way, self.free)(), theta, self.num_steps, self.horizon), after)


def split(x: Tensor, y: Tensor, seed: int) -> Data:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(x) * 4 // 5], order[len(x) * 4 // 5 :]
    return Data((x[train], y[train]), (x[test], y[test]))


def moons(seed: int, _: Path) -> Data:
    x, y = datasets.make_moons(1000, noise=0.2, random_state=seed)
    return split(torch.tensor(x, dtype=torch.float32), torch.tensor(y), seed)


def digits(seed: int, _: Path) -> Data:
    x, y = datasets.load_digits(return_X_y=True)
    return split(torch.tensor(x / 8 - 1, dtype=torch.float32), torch.tensor(y), seed)


def sine(seed: int, _: Path) -> Data:
    """The twenty points of the paper's first example, and points between them."""

    def points(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([x, torch.zeros_like(x)], dim=1), x.sin()

    return Data(points(torch.linspace(-5, 5, 20)), points(torch.linspace(-5, 5, 191)))


def mnist(seed: int, folder: Path) -> Data:
    """The first 2,000 training images, and the next 2,000 held out."""
    images = _bytes(folder / "train-images-idx3-ubyte.gz", 16)[: 4000 * 784].reshape(-1, 1, 28, 28).float() / 255 - 0.13
    labels = _bytes(folder / "train-labels-idx1-ubyte.gz", 8)[:4000].long()
    return Data((images[:2000], labels[:2000]), (images[2000:], labels[2000:]))


def _bytes(path: Path, start: int) -> Tensor:
    return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[start:]), dtype=torch.uint8)


class Second(nn.Module):
    """The second component of a state."""

    def forward(self, y: Tensor) -> Tensor:
        return y[:, 1]


TASKS = {
    "moons": Task(
        lambda: rs.fields.MLP(2, 16, 2),
        lambda high: rs.fields.Bounded(rs.fields.MLP(2, 16, 2, bound=1.0), -high, high),
        lambda high: rs.fields.OneSided(nn.Linear(2, 104), high),
        lambda: (nn.Identity(), nn.Linear(2, 2)),
        5,
        2.0,
        moons,
        30,
        64,
        1e-2,
    ),
    "digits": Task(
        lambda: rs.fields.MLP(16, 32, 1),
        lambda high: rs.fields.Bounded(rs.fields.MLP(16, 32, 1, bound=1.0), -high, high),
        lambda high: rs.fields.OneSided(nn.Linear(16, 62), high),
        lambda: (nn.Linear(64, 16), nn.Linear(16, 10)),
        5,
        2.0,
        digits,
        15,
        64,
        1e-2,
    ),
    "regression": Task(
        lambda: rs.fields.MLP(2, 10, 3),
        lambda high: rs.fields.Bounded(rs.fields.MLP(2, 10, 3, bound=1.0), -high, high),
        lambda high: rs.fields.OneSided(nn.Linear(2, 63), high),
        lambda: (nn.Identity(), Second()),
        5,
        5.0,
        sine,
        600,
        20,
        5e-3,
        nn.functional.mse_loss,
        classifies=False,
    ),
    "mnist": Task(
        lambda: rs.fields.Conv(8, size=(7, 7)),
        lambda high: rs.fields.Bounded(rs.fields.Conv(8, size=(7, 7), bound=1.0), -high, high),
        lambda high: rs.fields.OneSided(nn.Conv2d(8, 8, 3, padding=1), high, input_shape=(8, 7, 7)),
        lambda: (nn.Conv2d(1, 8, 4, stride=4), nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(392, 10))),
        3,
        1.5,
        mnist,
        5,
        100,
        5e-3,
    ),
}


@dataclasses.dataclass
class Count:
    """Samples in solves, those for which the first solver was not enough, and updates that were clipped."""

    samples: int = 0
    fallbacks: int = 0
    clipped: int = 0

    def __call__(self, solution: rs.Solution) -> None:
        self.samples += solution.solver_index.numel()
        self.fallbacks += int((solution.solver_index > 0).sum())


def run(folder: Path, name: str, way: str, seed: int) -> runs.Found:
    """One training: the score of held-out data, or how it ended."""
    task = TASKS[name]
    torch.manual_seed(seed)
    data, network, count = task.data(seed, folder), task.network(way), Count()
    network.block.options = dataclasses.replace(network.block.options, observe=count)
    began = time.process_time()
    try:
        train(task, network, way, data, count)
        with torch.no_grad():
            score = _score(task, network(data.test[0]), data.test[1])
    except (rs.errors.ResolventError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0], "seconds": time.process_time() - began}
    return {"score": score, "seconds": time.process_time() - began, **dataclasses.asdict(count)}


def train(task: Task, network: Net, way: str, data: Data, count: Count) -> None:
    x, y = data.train
    optimizer = torch.optim.Adam(network.parameters(), lr=task.learning_rate)
    penalty = rs.regularizers.Solvability(theta=THETA, limit=LIMIT)
    done = 0.0
    for _ in range(task.epochs):
        for rows in torch.randperm(len(x)).split(task.batch):
            if way == "ramped":
                done += len(rows) / len(x)
                network.block.theta = THETA * min(1.0, done / (RAMP * task.epochs))
            optimizer.zero_grad()
            if way in ("penalty", "clipped"):
                output, trajectory = network.with_trajectory(x[rows])
                loss = task.loss(output, y[rows])
                if way == "penalty":
                    loss = loss + penalty(network.block.field, trajectory)
            else:
                loss = task.loss(network(x[rows]), y[rows])
            loss.backward()
            if way == "clipped":
                count.clipped += clipped_step(optimizer, network, partial(penalty, network.block.field, trajectory))
            else:
                optimizer.step()


def clipped_step(optimizer: torch.optim.Optimizer, network: nn.Module, excess: Callable[[], Tensor]) -> bool:
    """A step that is halved, and at last undone, while slopes at the last stages grow beyond the limit. Returns whether
    that was necessary."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    before = [weight.detach().clone() for weight in weights]
    allowed = max(float(excess().detach()), ALLOWED)
    optimizer.step()
    for halving in range(HALVINGS + 1):
        if float(excess().detach()) <= allowed:
            return halving > 0
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.lerp_(old, 1.0 if halving == HALVINGS else 0.5)
    return True


def _score(task: Task, output: Tensor, target: Tensor) -> float:
    if task.classifies:
        return (output.argmax(1) == target).double().mean().item()
    return (output - target).square().mean().item()


def combinations(tasks: list[str], ways: list[str], seeds: int) -> Iterator[tuple[str, str, int]]:
    """The slowest first, so that many processes end at about the same time."""
    for name in sorted(tasks, key=list(TASKS).index, reverse=True):
        for way in sorted(ways, key=list(WAYS).index, reverse=True):
            for seed in range(seeds):
                yield name, way, seed


def table(results: dict[tuple[str, str], list[runs.Found]]) -> str:
    lines = [
        "| example | way | trainings | errors | held out | worst | solves with a fallback | time |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in TASKS:
        own = {way: results[name, way] for way in WAYS if (name, way) in results}
        for way, trainings in own.items():
            finished = [found for found in trainings if "error" not in found]
            samples, fallbacks = (sum(found[key] for found in finished) for key in ("samples", "fallbacks"))
            share = f"{fallbacks:,} of {samples:,}" if samples else "none to solve"
            cost = _seconds(trainings) / _seconds(own["free"]) if "free" in own else float("nan")
            lines.append(
                f"| {name} | {WAYS[way]} | {len(trainings)} | {len(trainings) - len(finished)} | "
                f"{_scores(TASKS[name], [found['score'] for found in finished])} | {share} | {cost:.1f} |"
            )
    return "\n".join(lines)


def _scores(task: Task, scores: list[float]) -> str:
    """Two cells: the typical score and the worst."""
    if not scores:
        return "- | -"
    if not task.classifies:
        return f"error {median(scores):.1e} (median) | {max(scores):.1e}"
    spread = stdev(scores) if len(scores) > 1 else 0.0
    return f"{100 * mean(scores):.1f} ± {100 * spread:.1f} % | {100 * min(scores):.1f} %"


def _seconds(trainings: list[runs.Found]) -> float:
    finished = [found for found in trainings if "error" not in found]
    return mean(found["seconds"] for found in finished or trainings)


def main() -> None:
    parser = runs.parser(__doc__, 10, "build/solvability")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--mnist", type=Path, default=Path("build/mnist"), help="folder with its files")
    arguments = parser.parse_args()
    wanted = list(combinations(arguments.tasks.split(","), arguments.ways.split(","), arguments.seeds))
    runs.run_all(partial(run, arguments.mnist), wanted, arguments.out, arguments.jobs)
    found = table(runs.collect(wanted, arguments.out))
    runs.show(found, "training.md", "solvability", arguments.write)


if __name__ == "__main__":
    main()
