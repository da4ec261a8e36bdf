"""`Learner`: the Lightning module of `resolvent train`."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer

from resolvent_lab.command import CommandError
from resolvent_lab.fitting.checkpoints import ENTRY
from resolvent_lab.lightning import LightningModule
from resolvent_lab.training.batches import Samples
from resolvent_lab.training.facts import Facts
from resolvent_lab.training.network import Architecture, Pass
from resolvent_lab.training.penalties import Penalties


class Learner(LightningModule):
    """A network with its loss: cross-entropy for classes, else the mean squared error of standardized values.

    The means over an epoch are kept here, not by Lightning, so that a run that is resumed within an epoch has them.

    Arguments:
        architecture: makes the network.
        facts: of the data.
        optimizer: made of the parameters.
        lr_scheduler: made of the optimizer; None keeps the learning rate.
        interval: when the scheduler steps.
        monitor: the metric for a scheduler that needs one.
        penalties: their weights.

    Attributes:
        history: the metrics of each epoch.
    """

    _mean: Tensor
    _scale: Tensor
    _target_mean: Tensor
    _target_scale: Tensor

    def __init__(
        self,
        architecture: Architecture,
        facts: Facts,
        optimizer: Callable[[Iterable[Any]], Optimizer] = torch.optim.Adam,
        lr_scheduler: Callable[[Optimizer], Any] | None = None,
        interval: Literal["epoch", "step"] = "epoch",
        monitor: str = "val_loss",
        penalties: Penalties | None = None,
    ) -> None:
        super().__init__()
        self.network = architecture.network(facts)
        self.facts, self.penalties = facts, Penalties() if penalties is None else penalties
        self._optimizer, self._scheduler, self._interval, self._monitor = optimizer, lr_scheduler, interval, monitor
        for name in ("mean", "scale", "target_mean", "target_scale"):
            values = getattr(facts, name) or (1.0 if "scale" in name else 0.0,)
            self.register_buffer(f"_{name}", torch.tensor(values))
        self.history: list[dict[str, float]] = []
        self._sums: dict[str, float] = {}

    def forward(self, batch: Samples) -> Tensor:
        """Class scores, or predictions in the units of the data."""
        outputs = self._pass(batch).outputs
        if self.facts.task == "classification":
            return outputs
        if self.facts.task == "regression":
            return outputs * self._target_scale + self._target_mean
        return outputs * self._scale + self._mean

    def _pass(self, batch: Samples) -> Pass:
        result: Pass = self.network(self.standardized(batch.inputs), batch.times, batch.numbers, self.penalties)
        return result

    def standardized(self, inputs: Tensor) -> Tensor:
        """Inputs as the network takes them."""
        return (inputs - self._mean) / self._scale if self.facts.mean else inputs

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.facts.task == "classification":
            return cross_entropy(outputs, targets)
        if self.facts.task == "regression":
            return mse_loss(outputs, (targets - self._target_mean) / self._target_scale)
        return mse_loss(outputs, (targets - self._mean) / self._scale if self.facts.mean else targets)

    def training_step(self, batch: Samples, _: int) -> Tensor:
        result = self._pass(batch)
        loss = self._loss(result.outputs, batch.targets)
        total = loss + sum(result.penalties.values())
        if not bool(total.isfinite()):
            raise CommandError(
                f"the loss is {float(total.detach())} in epoch {self.current_epoch}: take a smaller learning rate, "
                "--trainer.gradient_clip_val 1, or look at the data."
            )
        shown = {"loss": loss, **result.penalties}
        if result.steps is not None:
            shown["iterations"] = result.steps.double().mean()
        for name, value in shown.items():
            self.log(name, value.detach(), prog_bar=True)
            self._sums[name] = self._sums.get(name, 0.0) + batch.size * float(value.detach())
        self._sums["samples"] = self._sums.get("samples", 0) + batch.size
        return total

    def on_train_epoch_end(self) -> None:
        sums, self._sums = self._sums, {}
        means = {f"train_{name}": value / sums["samples"] for name, value in sums.items() if name != "samples"}
        self.log_dict(means)
        metrics = self.trainer.callback_metrics
        held_out = {name: float(value) for name, value in metrics.items() if name.startswith("val_")}
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.history.append({"epoch": self.current_epoch, "lr": rate, **means, **held_out})

    def validation_step(self, batch: Samples, _: int) -> None:
        self.log_dict(
            {f"val_{name}": value for name, value in self.measures(batch).items()},
            prog_bar=True,
            batch_size=batch.size,
            on_epoch=True,
            sync_dist=True,
        )

    def measures(self, batch: Samples) -> dict[str, Tensor]:
        """Means over a batch: the loss, and the accuracy or the squared error in the units of the data."""
        result = self._pass(batch)
        measured = {"loss": self._loss(result.outputs, batch.targets)}
        if self.facts.task == "classification":
            measured["accuracy"] = (result.outputs.argmax(1) == batch.targets).float().mean()
        return measured

    def configure_optimizers(self) -> Any:
        optimizer = self._optimizer(self.parameters())
        if self._scheduler is None:
            return optimizer
        settings = {"scheduler": self._scheduler(optimizer), "interval": self._interval, "monitor": self._monitor}
        return {"optimizer": optimizer, "lr_scheduler": settings}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.setdefault(ENTRY, {}).update(history=self.history, sums=self._sums)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.history, self._sums = checkpoint[ENTRY]["history"], checkpoint[ENTRY]["sums"]
