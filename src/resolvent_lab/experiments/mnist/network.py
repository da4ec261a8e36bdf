"""The network in training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import resolvent as rs
from resolvent_lab.experiments import machine
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.measure import measure
from resolvent_lab.experiments.network import Metrics, Network
from resolvent_lab.images import ImageModule, Split, load
from resolvent_lab.robustness.gradient import adversarial_images


def data(config: MnistConfig) -> ImageModule:
    split = load(config.data, machine.data_dir(), config.train_size)
    return ImageModule(split, config.batch_size, config.seed, machine.device())


class Mnist(Network):
    """A residual network for images, trained with cross-entropy and at most one penalty.

    The penalty is on the fields of the stages, or on the sensitivity of the whole network.
    """

    config: MnistConfig

    def __init__(self, config: MnistConfig) -> None:
        super().__init__(config)
        self.model = config.build()
        self.penalise = rs.regularizers.TrajectoryPenalty(
            divergence=config.alpha_div, jacobian=config.alpha_jac, power=config.power
        )
        self.sensitivity = rs.regularizers.Sensitivity(config.sensitivity, config.measure)
        self._graphs: dict[str, Any] = {}
        self._sums: dict[str, Tensor] = {}
        self._batches = 0

    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        images, labels = batch
        logits, penalty, failed = self._penalised(self._examples(images, labels))
        loss = cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)
        return {
            "loss": loss,
            "penalty": penalty,
            "accuracy": (logits.argmax(1) == labels).float().mean(),
            "failed_solves": failed.detach(),
            "total": loss + penalty,
        }

    def _penalised(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, penalty, and the number of failed solves, counted per sample."""
        if self.config.sensitivity:
            logits, tangents, failed = self._passed_with_tangents(images, torch.randn_like(images))
            return logits, self.sensitivity.of(logits, tangents), failed
        if self.config.alpha_div or self.config.alpha_jac:
            logits, trajectories = self.model.forward_with_trajectories(images)
            penalties = [self.penalise(b.field, t).total for b, t in zip(self.model.stages, trajectories, strict=True)]
            return logits, torch.stack(penalties).mean(), failures(trajectories)
        logits, failed = self._passed(images)
        return logits, logits.new_zeros(()), failed

    def _examples(self, images: Tensor, labels: Tensor) -> Tensor:
        """The images to train on: clean, noisy or adversarial."""
        if self.config.training == "noise":
            return images + self.config.noise * torch.randn_like(images)
        if self.config.training == "adversarial":
            scores = Scores(self.model, self._passed)
            return adversarial_images(scores, images, labels, self.config.budget, self.config.attack_steps)
        return images

    def _passed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the number of failed solves."""
        if self._replays:
            return self._replayed("pass", self.model, images)
        logits, trajectories = self.model.forward_with_trajectories(images)
        return logits, failures(trajectories)

    def _passed_with_tangents(self, images: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, their derivatives in these directions, and the number of failed solves."""
        if self._replays:
            (logits, tangents), failed = self._replayed("jvp", WithTangents(self.model), images, directions)
            return logits, tangents, failed
        logits, tangents, trajectories, solves = rs.jvp(self.model, images, directions)
        return logits, tangents, failures(trajectories, solves)

    @property
    def _replays(self) -> bool:
        return self.config.graph_steps > 0 and self.device.type == "cuda"

    def _replayed(self, name: str, module: nn.Module, *inputs: Tensor) -> tuple[Any, Tensor]:
        """The outputs of a module by a CUDA graph, and the number of failed solves."""
        if name not in self._graphs:
            self._graphs[name] = rs.blocks.cuda_graph(module, inputs, self.config.graph_steps)
        outputs = self._graphs[name](*inputs)
        return outputs, self._graphs[name].unconverged

    def training_step(self, batch: Any, _: int) -> Tensor:
        # Summed on the device: reading a number in each step would wait for the device each time.
        terms = self.terms(batch)
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach()
        self._batches += 1
        if self.config.schedule == "plateau":
            self.log("loss", terms["loss"], on_step=False, on_epoch=True)
        return terms["total"]

    def on_train_epoch_end(self) -> None:
        for name, value in self._sums.items():
            count = 1 if name == "failed_solves" else self._batches
            self.curves.setdefault(name, []).append(float(value) / count)
        self._sums, self._batches = {}, 0

    def configure_optimizers(self) -> Any:
        config = self.config
        adam = torch.optim.AdamW(_groups(self.model, config.weight_decay), lr=config.learning_rate)
        if config.schedule == "constant":
            return adam
        scheduler: Any
        if config.schedule == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.7, patience=10, cooldown=10)
            return [adam], [{"scheduler": scheduler, "monitor": "loss"}]
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(adam, config.learning_rate, total_steps=steps)
        return [adam], [{"scheduler": scheduler, "interval": "step"}]

    def measure(self, batches: Split) -> Metrics:
        measured = measure(self.model, self.config, batches, machine.device())
        self.model.cpu()
        return measured


class WithTangents(nn.Module):
    """Maps images and directions to logits and their derivatives in these directions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        logits, tangents, *_ = rs.jvp(self.model, images, directions)
        return logits, tangents


class Scores(nn.Module):
    """A model whose forward pass is another function, such as a CUDA graph; returns the logits only."""

    def __init__(self, model: nn.Module, passes: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.model = model
        self.passes = passes

    def forward(self, images: Tensor) -> Tensor:
        return self.passes(images)[0]


def failures(trajectories: Sequence[rs.blocks.Trajectory], others: Sequence[rs.Solution] = ()) -> Tensor:
    """The number of solves that did not converge, counted per sample, 0-d."""
    solutions = [*others, *(solution for trajectory in trajectories for solution in trajectory.solutions)]
    failed = [(~solution.converged).sum() for solution in solutions]
    return torch.stack(failed).sum() if failed else torch.zeros(())


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weights of convolutions and linear layers with weight decay, all others without."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    # Selected by not being a bias: a normalised weight is called parametrizations.weight.original.
    decaying = [p for layer in layers for name, p in layer.named_parameters() if name != "bias"]
    known = set(map(id, decaying))
    others = [p for p in model.parameters() if id(p) not in known]
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
