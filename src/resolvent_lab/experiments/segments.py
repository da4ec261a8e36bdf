"""Fields that are fitted to segments of trajectories by least squares, short segments first.

From the state at the start of a segment the integrator has to arrive at the state at its end. All segments are samples
of one batch, each with its own span. A stiff field has to be learned from fast to slow: where the field is not yet
contracting, an error of a fast component grows in proportion to the length of a segment, and hides all others.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent_lab.experiments.least_squares import LevenbergMarquardt, mean_square_at
from resolvent_lab.experiments.network import RunConfig, Trainable
from resolvent_lab.fitting.checkpoints import ENTRY

_RIDGES = (0.1, 0.01, 0.001)
# A smooth field is kept if its mean square error is at most this many times the one before smoothing.
_AS_GOOD = 25.0


class Segments(NamedTuple):
    """Pieces of trajectories: the states (count, n) at their starts and ends, and the times (2, count) there."""

    start: Tensor
    times: Tensor
    end: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.times[1] - self.times[0]

    def up_to(self, length: float) -> "Segments":
        """Those of at most this length."""
        kept = self.lengths <= length
        return Segments(self.start[kept], self.times[:, kept], self.end[kept])


def segments_of(times: Tensor, states: Tensor) -> Segments:
    """The segments between neighbouring points of trajectories: times (count, batch), states (count, batch, n)."""
    ends = torch.stack([times[:-1].flatten(), times[1:].flatten()])
    return Segments(states[:-1].flatten(0, 1), ends, states[1:].flatten(0, 1))


@dataclass(frozen=True, kw_only=True)
class FitConfig(RunConfig):
    """Settings of a fit. An epoch is one step of the Levenberg-Marquardt method.

    Attributes:
        stages: number of stages. Each allows segments that are longer by one factor, up to all of them. 0 takes all
            segments from the start.
        stage_epochs: epochs of each stage; the rest takes all segments.
        smoothing: number of epochs at the end with a penalty on the curvature of the field. If it fits the points much
            worse then, the field of before is kept.
    """

    stages: int
    stage_epochs: int
    smoothing: int = 0

    def longest(self, epoch: int, lengths: Tensor) -> float:
        """The length of the longest segments in an epoch."""
        stage = epoch // self.stage_epochs + 1
        low, high = float(lengths.min()), float(lengths.max())
        if stage >= self.stages:
            return high
        return float(low * (high / low) ** (stage / self.stages))

    def ridge(self, epoch: int) -> float:
        """The weight of the penalty: 0, and over the last epochs 0.1, 0.01 and 0.001."""
        done = epoch - (self.epochs - self.smoothing)
        return 0.0 if done < 0 else _RIDGES[done * len(_RIDGES) // self.smoothing]


class FittedField(Trainable):
    """A field that is fitted to segments, in double precision. A subclass integrates it, and measures its error.

    `batched` says whether one backward pass takes all residuals together. Passes through `rs.odeint` can.
    """

    config: FitConfig
    precision = torch.float64
    batched = True

    def __init__(self, config: FitConfig, field: nn.Module) -> None:
        super().__init__(config)
        self.field = field.to(self.precision)
        self.automatic_optimization = False
        self._landscape, self._method = (0.0, 0.0), self._new_method()
        self._unsmoothed: tuple[float, dict[str, Tensor]] = (math.inf, {})

    @abstractmethod
    def prepare(self, segments: Segments) -> None:
        """Takes the scales of the field from the data, before the first step."""

    @abstractmethod
    def residuals(self, segments: Segments) -> Tensor:
        """The errors at the ends of the segments, (count,)."""

    @abstractmethod
    def objective(self, segments: Segments) -> Tensor:
        """What is squared and minimised in the present epoch: the residuals, weighted or with penalties."""

    def terms(self, batch: Any) -> Mapping[str, Tensor]:
        terms = {"loss": self.residuals(batch), "total": self.objective(batch)}
        return {name: values.square().mean() for name, values in terms.items()}

    def training_step(self, batch: Segments, _: int) -> None:
        if self.current_epoch == 0:
            self.prepare(batch)
        longest = self.config.longest(self.current_epoch, batch.lengths)
        landscape = longest, self.config.ridge(self.current_epoch)
        segments = batch.up_to(longest)
        if landscape != self._landscape:  # the damping was that of another landscape
            if self._landscape[1] == 0 < landscape[1]:
                self._unsmoothed = self._loss(segments), deepcopy(self.field.state_dict())
            self._landscape, self._method = landscape, self._new_method()
        total = self._method.step(lambda: self.objective(segments))
        loss = self._loss(segments)
        before, weights = self._unsmoothed
        if self.current_epoch == self.config.epochs - 1 and loss > _AS_GOOD * before:
            loss = before  # smoothing has led to another minimum
            self.field.load_state_dict(weights)
        self.record({"loss": torch.tensor(loss), "total": torch.tensor(total), "longest": torch.tensor(longest)})

    def configure_optimizers(self) -> None:
        """The steps are made in `training_step`."""

    def _loss(self, segments: Segments) -> float:
        return mean_square_at(lambda: self.residuals(segments))

    def _new_method(self) -> LevenbergMarquardt:
        return LevenbergMarquardt(self.field.parameters(), self.batched)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[ENTRY]["method"] = (self._landscape, self._method.damping, self._method.loss, self._unsmoothed)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._method = self._new_method()
        kept = checkpoint[ENTRY]["method"]
        self._landscape, self._method.damping, self._method.loss, self._unsmoothed = kept
