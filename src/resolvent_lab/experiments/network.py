"""Base classes of all experiments: configuration, network and data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab.fitting.checkpoints import ENTRY
from resolvent_lab.fitting.epoch_data import EpochData
from resolvent_lab.lightning import LightningModule

Metrics = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings common to all experiments. Runs that differ only in `seed` are one point of a sweep.

    Attributes:
        seed: of weights, data and random probes.
        epochs: number of epochs.
    """

    seed: int
    epochs: int

    @property
    def name(self) -> str:
        """The name of the run, unique within its experiment."""
        return f"seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """Settings common to all experiments with theta layers.

    Attributes:
        theta: of the layers.
        learning_rate: initial learning rate of Adam.
        init: initialisation of the weights, see `rs.fields.initialise`; the paper's is Xavier uniform.
    """

    theta: float
    learning_rate: float
    init: str = "xavier"

    @property
    def name(self) -> str:
        return f"theta{self.theta:g}-seed{self.seed}"


class Trainable(LightningModule, ABC):
    """What a run trains and measures. `curves` holds the terms of the loss, one value per training step.

    Attributes:
        config: the settings of the run.
        precision: the dtype of its weights.
    """

    config: RunConfig
    precision: torch.dtype = torch.float32

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.config = config
        self.curves: dict[str, list[float]] = {}

    @abstractmethod
    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        """0-d tensors to record. "loss" is the error in the data, "total" is minimised."""

    @abstractmethod
    def measure(self, batches: Any) -> Metrics:
        """Metrics of the trained network: numbers and lists of numbers by name. `batches` is its data."""

    def record(self, terms: Mapping[str, Tensor]) -> None:
        """Adds the terms of a training step to the curves."""
        for name, value in terms.items():
            self.curves.setdefault(name, []).append(float(value.detach()))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.setdefault(ENTRY, {})["curves"] = self.curves

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.curves = checkpoint[ENTRY]["curves"]


class Network(Trainable):
    """A network of theta layers in training. A subclass defines its loss and its measurements."""

    config: Config
    block: rs.ThetaBlock
    _restarts: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.register_buffer("_restarts", torch.zeros((), dtype=torch.int64))

    @property
    def restarts(self) -> int:
        """The number of training passes in which a solver fell back to another. It is saved with the weights."""
        return int(self._restarts)

    def trajectory(self, x: Tensor, t0: Tensor | float = 0.0) -> rs.blocks.Trajectory:
        """The trajectory of the block."""
        trajectory = self.block.trajectory(x, t0)
        if self.training:
            self._restarts += any(bool(solve.solver_index.any()) for solve in trajectory.solutions)
        return trajectory

    def plateau(self) -> Mapping[str, Any] | None:
        """Settings of ReduceLROnPlateau, which monitors "loss"; None keeps the learning rate constant."""
        return None

    def training_step(self, batch: Any, _: int) -> Tensor:
        terms = self.terms(batch)
        self.record(terms)
        if self.plateau() is not None:
            self.log("loss", terms["loss"], on_step=False, on_epoch=True)
        return terms["total"]

    def configure_optimizers(self) -> Any:
        adam = torch.optim.Adam(self.parameters(), lr=self.config.learning_rate)
        settings = self.plateau()
        if settings is None:
            return adam
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, **settings)
        return {"optimizer": adam, "lr_scheduler": scheduler, "monitor": "loss"}


class Batches(EpochData):
    """Data as a list of batches, for small data sets."""

    def __init__(self, batches: list[Any], shuffle: bool = False) -> None:
        super().__init__()
        self.batches = batches
        self.shuffle = shuffle

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self) -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(self.batches, batch_size=None, shuffle=self.shuffle)  # type: ignore[arg-type]


def mean_steps(solutions: Sequence[rs.Solution]) -> float:
    """Mean nonlinear iterations per layer and sample; 0 if nothing was solved."""
    steps = [solution.steps.double().mean().item() for solution in solutions]
    return sum(steps) / len(steps) if steps else 0.0


def sign_flips(values: Tensor) -> float:
    """How often the increments of values (T, batch) change sign, averaged over the batch."""
    signs = values.diff(dim=0).sign()
    return (signs.diff(dim=0) != 0).double().sum(0).mean().item()
