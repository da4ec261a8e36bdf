"""Trains networks with implicit layers with default settings, over many seeds, for docs/training.md.

python benchmarks/training.py [--tasks moons,digits] [--seeds 12] [--jobs 1] [--out build/training] [--write]

Every run leaves a file, so that an interrupted benchmark goes on where it was. What is counted: trainings that end in
an error, accuracy on held-out data, and how many solves needed a fallback or failed.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from statistics import mean, stdev

import torch
from sklearn import datasets
from torch import Tensor, nn

import resolvent as rs
import runs

FULL_BATCH = 256
# The loss of weights for which a layer has no solution. Finite: torch's line search interpolates.
WORST = 1e6


class Count:
    """Samples in solves, those for which the first solver was not enough, those that failed, and probes of a line
    search that were refused."""

    def __init__(self) -> None:
        self.samples = self.fallbacks = self.failed = self.refused = 0

    def __call__(self, solution: rs.Solution) -> None:
        self.samples += solution.solver_index.numel()
        self.fallbacks += int((solution.solver_index > 0).sum())
        self.failed += int((~solution.converged).sum())


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, y: Tensor) -> Tensor:
        y = self.norm(y)
        return self.attention(y, y, y, need_weights=False)[0]


class Transformer(nn.Module):
    """Two blocks of attention and perceptron, every branch an implicit layer; the quarters of a digit are its tokens.

    Embeddings are multiplied by sqrt(width), as usual: the slopes of a layer norm are inverse to the size of its input.
    """

    def __init__(self, theta: float, width: int = 16) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(16, width), nn.Parameter(0.1 * torch.randn(4, width))
        branches = [branch for _ in range(2) for branch in (Attention(width), _perceptron(width))]
        self.layers = nn.Sequential(*(rs.ThetaBlock(rs.Autonomous(f), theta, 1, 1.0) for f in branches))
        self.out = nn.Linear(width, 10)
        self.scale = width**0.5

    def forward(self, x: Tensor) -> Tensor:
        quarters = x.reshape(-1, 2, 4, 2, 4).transpose(2, 3).reshape(-1, 4, 16)
        tokens = self.scale * self.embed(quarters) + self.position
        return self.out(self.layers(tokens).mean(1))


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))


class Equilibrium(nn.Module):
    """z = tanh(W z + U x + c); theta = 0 takes five steps of the recurrence in place of its rest."""

    def __init__(self, theta: float, width: int = 32) -> None:
        super().__init__()
        self.inner, self.inject, self.out = nn.Linear(width, width), nn.Linear(64, width), nn.Linear(width, 10)
        self.explicit = theta == 0
        self.count = Count()

    def forward(self, x: Tensor) -> Tensor:
        u = self.inject(x)
        if self.explicit:
            z = torch.zeros_like(u)
            for _ in range(5):
                z = torch.tanh(self.inner(z) + u)
            return self.out(z)
        F = rs.Rowwise(lambda z, u: torch.tanh(self.inner(z) + u), u)
        solution = rs.resolve(F, torch.zeros_like(u), 1.0)
        self.count(solution)
        return self.out(solution.value)


def moons_net(theta: float) -> nn.Module:
    return nn.Sequential(rs.ThetaBlock(rs.fields.MLP(2, 16, 2), theta, num_steps=5, horizon=2.0), nn.Linear(2, 2))


def digits_net(theta: float) -> nn.Module:
    block = rs.ThetaBlock(rs.fields.MLP(16, 32, 1), theta, num_steps=5, horizon=2.0)
    return nn.Sequential(nn.Linear(64, 16), block, nn.Linear(16, 10))


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its data (samples and labels for a seed), and how it is trained; iterations are those of L-BFGS."""

    network: Callable[[float], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    epochs: int
    learning_rate: float
    batch: int = 64
    iterations: int = 40
    thetas: tuple[float, ...] = (0.0, 0.5, 1.0)


def moons(seed: int) -> tuple[Tensor, Tensor]:
    x, y = datasets.make_moons(1000, noise=0.2, random_state=seed)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def digits(seed: int) -> tuple[Tensor, Tensor]:
    x, y = datasets.load_digits(return_X_y=True)
    return torch.tensor(x / 8 - 1, dtype=torch.float32), torch.tensor(y)


TASKS = {
    "moons": Task(moons_net, moons, 30, 1e-2),
    "digits": Task(digits_net, digits, 15, 1e-2),
    "equilibrium": Task(Equilibrium, digits, 10, 1e-2, thetas=(0.0, 1.0)),
    "transformer": Task(Transformer, digits, 15, 5e-3, batch=128, iterations=60),
}
OPTIMIZERS = ("adam", "l-bfgs")


def run(name: str, theta: float, optimizer: str, seed: int) -> dict[str, float | str]:
    """One training: accuracy on held-out data, or how it ended."""
    task = TASKS[name]
    torch.manual_seed(seed)
    x, y = task.data(seed)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(x) * 4 // 5], order[len(x) * 4 // 5 :]
    network = task.network(theta)
    count = _observe(network)
    began = time.process_time()
    try:
        data = x[train], y[train]
        loss = _adam(network, *data, task) if optimizer == "adam" else _lbfgs(network, *data, task, count)
    except (rs.errors.ResolventError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
    with torch.no_grad():
        accuracy = (network(x[test]).argmax(1) == y[test]).double().mean().item()
    seconds = time.process_time() - began
    return {
        "accuracy": accuracy,
        "loss": loss,
        "seconds": seconds,
        "samples": count.samples,
        "fallbacks": count.fallbacks,
        "masked": count.failed,
        "refused": count.refused,
    }


def _observe(network: nn.Module) -> Count:
    count = network.count if isinstance(network, Equilibrium) else Count()
    for module in network.modules():
        if isinstance(module, rs.Block):
            module.options = dataclasses.replace(module.options, observe=count)
    return count


def _adam(network: nn.Module, x: Tensor, y: Tensor, task: Task) -> float:
    optimizer = torch.optim.Adam(network.parameters(), lr=task.learning_rate)
    for _ in range(task.epochs):
        for rows in torch.randperm(len(x)).split(task.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
    return loss.item()


def _lbfgs(network: nn.Module, x: Tensor, y: Tensor, task: Task, count: Count) -> float:
    """All at once, as L-BFGS needs it, and of some hundred samples, so that it does not take for ever."""
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=task.iterations, line_search_fn="strong_wolfe")
    x, y = x[:FULL_BATCH], y[:FULL_BATCH]

    def closure() -> Tensor:
        optimizer.zero_grad()
        try:
            loss = nn.functional.cross_entropy(network(x), y)
        except rs.ConvergenceError:  # The line search tries weights for which a layer has no solution.
            count.refused += 1
            return torch.tensor(WORST)
        loss.backward()
        return loss

    optimizer.step(closure)
    return closure().item()


def combinations(tasks: list[str], seeds: int) -> Iterator[tuple[str, float, str, int]]:
    """The slowest first, so that many processes end at about the same time."""
    for name in sorted(tasks, key=list(TASKS).index, reverse=True):
        for optimizer in OPTIMIZERS:
            for theta in reversed(TASKS[name].thetas):
                for seed in range(seeds):
                    yield name, theta, optimizer, seed


def _position(key: tuple[str, float, str]) -> tuple[int, str, float]:
    name, theta, optimizer = key
    return list(TASKS).index(name), optimizer, theta


def table(results: dict[tuple[str, float, str], list[runs.Found]]) -> str:
    lines = [
        "| network | optimizer | theta | trainings | errors | accuracy, held out | lowest | solves with a fallback | "
        "masked | probes refused |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (name, theta, optimizer), trainings in results.items():
        finished = [found for found in trainings if "error" not in found]
        accuracy = [100 * found["accuracy"] for found in finished] or [float("nan")]
        spread = stdev(accuracy) if len(accuracy) > 1 else 0.0
        counts = [sum(found[key] for found in finished) for key in ("samples", "fallbacks", "masked", "refused")]
        samples, fallbacks, masked, refused = counts
        share = f"{fallbacks:,} of {samples:,}" if samples else "none to solve"
        lines.append(
            f"| {name} | {optimizer} | {theta:g} | {len(trainings)} | {len(trainings) - len(finished)} | "
            f"{mean(accuracy):.1f} ± {spread:.1f} % | {min(accuracy):.1f} % | {share} | {masked} | {refused} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = runs.parser(__doc__, 12, "build/training")
    parser.add_argument("--tasks", default=",".join(TASKS))
    arguments = parser.parse_args()
    wanted = list(combinations(arguments.tasks.split(","), arguments.seeds))
    runs.run_all(run, wanted, arguments.out, arguments.jobs)
    results = runs.collect(wanted, arguments.out)
    found = table({key: results[key] for key in sorted(results, key=_position)})
    runs.show(found, "training.md", "training", arguments.write)


if __name__ == "__main__":
    main()
