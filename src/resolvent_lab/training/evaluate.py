"""Evaluation: the loss and other measures of a trained network on held-out data."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab.solver_monitor import mean_steps
from resolvent_lab.training.batches import Batches, Samples
from resolvent_lab.training.trained import Trained, load


def evaluate(run: Path | str, part: str = "test", file: Path | None = None, weights: str = "best") -> dict[str, Any]:
    """Measures a trained network, and writes evaluation-PART.json into its folder.

    Arguments:
        run: the folder of the run.
        part: "train", "validation" or "test".
        file: other data with targets, in place of a part.
        weights: "best" or "last".

    Returns:
        The number of samples; accuracy, and the cross-entropy as `loss`, for classes; root mean squared errors in the
        units of the data and R^2, by name of the target, for others; the mean number of solver iterations, and the
        number of samples whose solve failed.
    """
    trained = load(run, weights)
    samples = trained.samples(part, file)
    solves = _Solves(trained)
    outputs = solves.outputs(samples)
    measured = {"samples": samples.size, **_measures(trained, outputs, samples), **solves.counts}
    name = part if file is None else file.stem
    trained.folder.write_json(f"evaluation-{name}.json", measured)
    return measured


def _measures(trained: Trained, outputs: Tensor, samples: Samples) -> dict[str, Any]:
    facts = trained.facts
    if facts.task == "classification":
        loss = torch.nn.functional.cross_entropy(outputs, samples.targets)
        return {"loss": float(loss), "accuracy": float((outputs.argmax(1) == samples.targets).double().mean())}
    errors, truth = (outputs - samples.targets).double().flatten(0, -2), samples.targets.double().flatten(0, -2)
    variance = truth.var(0, correction=0)
    share = 1 - errors.square().mean(0) / variance.clamp_min(torch.finfo(torch.float64).tiny)
    names = facts.targets
    return {
        "rmse": dict(zip(names, errors.square().mean(0).sqrt().tolist(), strict=True)),
        "r2": dict(zip(names, share.tolist(), strict=True)),
    }


class _Solves:
    """Outputs with counts of iterations and failures."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.counts: dict[str, float] = {}

    @torch.no_grad()
    def outputs(self, samples: Samples) -> Tensor:
        learner = self.trained.learner
        if not any(isinstance(module, rs.Block | rs.Equilibrium) for module in learner.modules()):
            return self.trained.outputs(samples)
        with rs.blocks.Monitor(learner) as monitor:
            outputs = torch.cat([learner(batch) for batch in Batches(samples, 256)])
        failed = sum(record.failed for record in monitor.records.values())
        self.counts = {"iterations": mean_steps(monitor), "failed": failed}
        return outputs
