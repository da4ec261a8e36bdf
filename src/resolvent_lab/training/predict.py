"""Prediction: the outputs of a trained network for a file of inputs, as CSV or NPZ."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from resolvent_lab import atomic
from resolvent_lab.training.batches import Samples
from resolvent_lab.training.facts import Facts
from resolvent_lab.training.trained import load


def predict(run: Path, file: Path, out: Path, weights: str = "best") -> int:
    """Writes the predictions for a file, and returns the number of samples.

    A CSV file has a row for each sample: its class and the probability of each class, or a column for each target. For
    a series there is a row for each series and time. An NPZ file has arrays `names`, and `classes` and `probabilities`,
    or `predictions`, and `times` for series.

    Arguments:
        run: the folder of the run.
        file: of the form of the training data; targets are not needed.
        out: ends in .csv or .npz.
        weights: "best" or "last".
    """
    if out.suffix not in (".csv", ".npz"):
        raise ValueError(f"--to must end in .csv or .npz, got {out}.")
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} for --to {out}.")
    trained = load(run, weights)
    samples, names = trained.data.read_inputs(file, trained.facts, targets=False)
    outputs = trained.outputs(samples)
    if out.suffix == ".csv":
        content = _csv(trained.facts, outputs, samples, names).encode()
    else:
        content = _npz(trained.facts, outputs, samples, names)
    atomic.write(out, content)
    return samples.size


def _csv(facts: Facts, outputs: Tensor, samples: Samples, names: list[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if facts.task == "classification":
        writer.writerow(["sample", "class", *(f"probability_{name}" for name in facts.classes)])
        for name, row in zip(names, outputs.softmax(1).tolist(), strict=True):
            writer.writerow([name, facts.classes[row.index(max(row))], *row])
    elif facts.task == "regression":
        writer.writerow(["sample", *facts.targets])
        writer.writerows([name, *row] for name, row in zip(names, outputs.tolist(), strict=True))
    else:
        writer.writerow(["series", "time", *facts.targets])
        for name, times, states in zip(names, samples.times.tolist(), outputs.tolist(), strict=True):
            writer.writerows([name, time, *state] for time, state in zip(times, states, strict=True))
    return text.getvalue()


def _npz(facts: Facts, outputs: Tensor, samples: Samples, names: list[Any]) -> bytes:
    arrays: dict[str, Any] = {"names": np.array([str(name) for name in names])}
    if facts.task == "classification":
        arrays["probabilities"] = outputs.softmax(1).numpy()
        arrays["classes"] = np.array([facts.classes[k] for k in outputs.argmax(1).tolist()])
    else:
        arrays["predictions"] = outputs.numpy()
    if facts.task == "series":
        arrays["times"] = samples.times.numpy()
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
