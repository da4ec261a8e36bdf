"""What the networks of all experiments have in common: how they are configured, trained and recorded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab.lightning import LightningDataModule, LightningModule

Metrics = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run but for its seed is one point of an experiment; these are the settings that every experiment has.

    Attributes:
        theta: of the layers.
        seed: of weights, data and probes.
        epochs: of training.
        learning_rate: of Adam, at the start.
        init: of the weights, see `rs.fields.initialise`.
    """

    theta: float
    seed: int
    epochs: int
    learning_rate: float
    init: str = "xavier_unit"

    @property
    def name(self) -> str:
        """Distinguishes the runs of an experiment."""
        return f"theta{self.theta:g}-seed{self.seed}"


class Network(LightningModule, ABC):
    """A block of theta layers in training.

    `curves` holds what was recorded in each epoch; a subclass says what its loss is and what is measured in the end.
    """

    config: Config
    block: rs.ThetaBlock
    _restarts: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.curves: dict[str, list[float]] = {}
        self.register_buffer("_restarts", torch.zeros((), dtype=torch.int64))

    @property
    def restarts(self) -> int:
        """In how many calls in training a solver had to fall back. It is kept with the weights."""
        return int(self._restarts)

    def trajectory(self, x: Tensor, t0: Tensor | float = 0.0) -> rs.blocks.Trajectory:
        """The trajectory of the block."""
        trajectory = self.block.trajectory(x, t0)
        if self.training:
            self._restarts += any(bool(solve.solver_index.any()) for solve in trajectory.solutions)
        return trajectory

    @abstractmethod
    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        """Tensors of no dimension to be recorded; "loss" is the error in the data, "total" what is minimised."""

    @abstractmethod
    def measure(self, batches: Any) -> Metrics:
        """Numbers and lists of numbers by name, taken once from the trained network; `batches` is its data."""

    def plateau(self) -> Mapping[str, Any] | None:
        """Settings of ReduceLROnPlateau, which watches the error in the data; None keeps the learning rate."""
        return None

    def training_step(self, batch: Any, _: int) -> Tensor:
        terms = self.terms(batch)
        for name, value in terms.items():
            self.curves.setdefault(name, []).append(float(value.detach()))
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


class Batches(LightningDataModule):
    """Data that is small enough to be held as a list of batches."""

    def __init__(self, batches: list[Any], shuffle: bool = False) -> None:
        super().__init__()
        self.batches = batches
        self.shuffle = shuffle

    def train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(self.batches, batch_size=None, shuffle=self.shuffle)  # type: ignore[arg-type]


def mean_steps(solutions: Sequence[rs.Solution]) -> float:
    """Nonlinear iterations a layer, on average over layers and samples; none where nothing was solved."""
    steps = [solution.steps.double().mean().item() for solution in solutions]
    return sum(steps) / len(steps) if steps else 0.0


def sign_flips(values: Tensor) -> float:
    """How often the increments of (T, batch) change their sign, on average over the batch."""
    signs = values.diff(dim=0).sign()
    return (signs.diff(dim=0) != 0).double().sum(0).mean().item()
