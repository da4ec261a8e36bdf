"""Small files of data, and settings to train on them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from resolvent_lab.training import configuration

QUIET = ("--trainer.enable_progress_bar", "false", "--trainer.logger", "false")
"""What a training in a test does not need."""


def rings(folder: Path, count: int = 60) -> Path:
    """Points in the plane; those outside a circle are of one class."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 2))
    names = np.where((x**2).sum(1) > 1.2, "outer", "inner")
    lines = [f"{a:.6f},{b:.6f},{name}" for (a, b), name in zip(x, names, strict=True)]
    path = folder / "rings.csv"
    path.write_text("\n".join(["x1,x2,ring", *lines]) + "\n")
    return path


def plane(folder: Path, count: int = 60) -> Path:
    """A linear function of three numbers, as Parquet."""
    import pandas as pd

    x = np.random.default_rng(1).normal(size=(count, 3))
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "sum": 5 + 10 * x.sum(1)})
    path = folder / "plane.parquet"
    table.to_parquet(path)
    return path


def arrays(folder: Path, count: int = 40) -> Path:
    """Inputs (n, 1, 8, 8) and their classes, as NPZ."""
    x = np.random.default_rng(2).normal(size=(count, 1, 8, 8)).astype(np.float32)
    path = folder / "arrays.npz"
    np.savez(path, inputs=x, targets=(x.mean((1, 2, 3)) > 0).astype(np.int64))
    return path


def decays(folder: Path, count: int = 12, points: int = 5) -> Path:
    """Series of y' = -y, a row for each series and time."""
    times = np.linspace(0, 1, points)
    lines = ["series,time,y,z"]
    for k in range(count):
        lines += [f"s{k:02},{t:.6f},{(1 + k) * np.exp(-t):.6f},{k * np.exp(-2 * t):.6f}" for t in times]
    path = folder / "decays.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def pictures(folder: Path, count: int = 8) -> Path:
    """A folder with grey pictures of two classes."""
    from PIL import Image

    generator = np.random.default_rng(3)
    for name, low in (("dark", 0), ("light", 128)):
        (folder / "pictures" / name).mkdir(parents=True)
        for k in range(count):
            pixels = generator.integers(low, low + 120, size=(8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{k}.png")
    return folder / "pictures"


def table_settings(folder: Path, *more: str) -> Any:
    """Two epochs of two theta layers on the rings."""
    file = rings(folder) if not (folder / "rings.csv").exists() else folder / "rings.csv"
    torch.set_default_dtype(torch.float32)
    return configuration.parse(
        *("--data", "Table", "--data.file", str(file), "--data.target", "ring", "--data.batch_size", "16"),
        *("--model", "ThetaMLP", "--model.layers", "2", "--model.dim", "4", "--model.width", "6"),
        *("--trainer.max_epochs", "2", "--out", str(folder / "run"), *QUIET, *more),
    )
