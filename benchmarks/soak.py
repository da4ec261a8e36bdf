"""Long runs on hostile input: a million solves, and ten thousand steps of training, with tables of what became of them.

    PYTHONPATH=tests python benchmarks/soak.py [--solves 1000000] [--steps 10000] [--write]

It takes up to an hour of one core. The exit code is 1 if a solve claims a solution that it has not found, if a step of
training is wrong without an error, or if memory grows.
"""

import argparse
import sys
import time

import torch

import resolvent as rs
from runs import show
from soaking import HOSTILE, Solves, Training, hostile_solves, train

# Resident memory may grow by this fraction after the first tenth of the training: pages are returned only whole.
_GROWTH = 0.05


def table_of_solves(solves: Solves, seconds: float) -> str:
    meanings = [status.meaning for status in rs.Status if status is not rs.Status.RUNNING]
    lines = [f"| solver | solves | {' | '.join(meanings)} | false claims |", "|---|" + "---:|" * (len(meanings) + 2)]
    total = [0] * (len(meanings) + 2)
    for solver in sorted({name for name, _ in solves.statuses}):
        counts = [solves.statuses[solver, meaning] for meaning in meanings]
        false = sum(count for (name, _), count in solves.faults.items() if name == solver)
        row = [sum(counts), *counts, false]
        total = [a + b for a, b in zip(total, row, strict=True)]
        lines.append(f"| `{solver}` | {' | '.join(f'{n:,}' for n in row)} |")
    lines.append(f"| all, {seconds / 60:.0f} minutes | {' | '.join(f'{n:,}' for n in total)} |")
    return "\n".join(lines)


def table_of_training(training: Training, seconds: float) -> str:
    outcomes = sorted({outcome for _, outcome in training.outcomes}, key=lambda name: (name != "trained", name))
    lines = [f"| batch | {' | '.join(outcomes)} |", "|---|" + "---:|" * len(outcomes)]
    for kind in HOSTILE:
        counts = [f"{training.outcomes[kind, outcome]:,}" for outcome in outcomes]
        lines.append(f"| {kind} | {' | '.join(counts)} |")
    first, last = (f"{size / 2**20:.0f} MiB and {count:,} tensors" for size, count in _states(training))
    steps = training.outcomes.total()
    lines += ["", f"{steps:,} steps in {seconds / 60:.0f} minutes: {first} after a tenth, {last} at the end; "
              f"{len(training.wrong)} wrong without an error."]  # fmt: skip
    return "\n".join(lines)


def _states(training: Training) -> list[tuple[int, int]]:
    return list(zip(training.memory, training.tensors, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solves", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faults: list[str] = []
    if options.steps:
        start = time.monotonic()
        # oneDNN keeps compiled convolutions of up to a thousand shapes, which would look like a leak.
        with torch.backends.mkldnn.flags(enabled=False):
            training = train(options.steps, options.seed)
        show(table_of_training(training, time.monotonic() - start), "soak.md", "training", options.write)
        faults += training.wrong
        (before, few), (after, many) = _states(training)
        if after > (1 + _GROWTH) * before or many > 1.01 * few + 10:
            faults.append(f"memory grew from {before} to {after} bytes, from {few} to {many} tensors")
    if options.solves:
        start = time.monotonic()
        solves = hostile_solves(options.solves, options.seed)
        show(table_of_solves(solves, time.monotonic() - start), "soak.md", "solves", options.write)
        faults += [f"{' | '.join(key)}: {example}" for key, example in solves.examples.items()]
    print("\n".join(faults) or "nothing is wrong")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
