"""Trains the image network in float32 and under autocast to bfloat16 or float16, and compares the accuracies.

python benchmarks/precision.py [--precisions float32,bfloat16] [--device cpu] [--seeds 5] [--jobs 1] [--epochs 6]
    [--out build/precision] [--write]

`rs.models.implicit_resnet18`, four channels in its first stage, on scikit-learn's digits. Samples whose solves fail are
masked and counted. Under float16 the loss is scaled by torch's GradScaler, on a GPU. Every run leaves a file, so that
an interrupted benchmark goes on where it was.
"""

import time
from contextlib import nullcontext
from statistics import mean, stdev
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn

import resolvent as rs
import runs

BATCH, RATE = 64, 3e-3


def images(seed: int, device: str) -> tuple[Tensor, ...]:
    """Training and held-out images with their labels; the split depends on the seed."""
    digits = datasets.load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:-360], order[-360:]
    return tuple(part.to(device) for part in (x[train], y[train], x[test], y[test]))


def run(precision: str, device: str, epochs: int, seed: int) -> dict[str, Any]:
    x, y, x_test, y_test = images(seed, device)
    torch.manual_seed(seed)
    policy = rs.Mask(most=1.0)
    network = rs.models.implicit_resnet18(channels=4, input_shape=(1, 8, 8), on_failure=policy).to(device)
    optimizer = torch.optim.Adam(network.parameters(), RATE, weight_decay=1e-4)
    low = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
    start = time.perf_counter()
    with rs.blocks.Monitor(network) as monitor:
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                with torch.autocast(device, low) if low else nullcontext():
                    loss = nn.functional.cross_entropy(network(x[batch]), y[batch])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        seconds = time.perf_counter() - start
        records = list(monitor.records.values())
    network.eval()
    with torch.no_grad(), torch.autocast(device, low) if low else nullcontext():
        accuracy = float((network(x_test).argmax(1) == y_test).double().mean())
    return {
        "accuracy": 100 * accuracy,
        "solves": sum(record.samples for record in records),
        "fallbacks": sum(record.fallbacks for record in records),
        "failed": sum(record.failed for record in records),
        "seconds": seconds,
    }


def table(found: dict[tuple[Any, ...], list[runs.Found]]) -> str:
    lines = [
        "| precision | device | epochs | seeds | accuracy, held out | lowest | highest | solves | fallbacks | failed |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (precision, device, epochs), each in found.items():
        accuracies = [one["accuracy"] for one in each]
        spread = stdev(accuracies) if len(each) > 1 else 0.0
        counts = [f"{sum(one[key] for one in each):,}" for key in ("solves", "fallbacks", "failed")]
        lines.append(
            f"| {precision} | {device} | {epochs} | {len(each)} | {mean(accuracies):.1f} ± {spread:.1f} % | "
            f"{min(accuracies):.1f} % | {max(accuracies):.1f} % | {' | '.join(counts)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = runs.parser(__doc__, seeds=5, out="build/precision")
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    precisions = options.precisions.split(",")
    if unknown := set(precisions) - {"float32", "bfloat16", "float16"}:
        parser.error(f"precisions are float32, bfloat16 and float16, got {', '.join(sorted(unknown))}")
    if "float16" in precisions and options.device == "cpu":
        parser.error("float16 needs --device cuda: a loss has to be scaled, and torch scales it there")
    combinations = [(p, options.device, options.epochs, seed) for p in precisions for seed in range(options.seeds)]
    runs.run_all(run, combinations, options.out, options.jobs)
    runs.show(
        table(runs.collect(combinations, options.out)), "pytorch.md", f"precision {options.device}", options.write
    )


if __name__ == "__main__":
    main()
