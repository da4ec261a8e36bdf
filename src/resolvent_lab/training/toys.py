"""The data of the paper's first three examples, made when they are needed."""

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab import problems
from resolvent_lab.training.batches import Samples, samples
from resolvent_lab.training.data import Data, standardization
from resolvent_lab.training.facts import Facts
from resolvent_lab.training.series import Series
from resolvent_lab.training.tables import Table


class Sine(Data):
    """y = sin x at random points of [-5, 5], a regression.

    Arguments:
        count: number of points.
        batch_size: points per batch.
        validation, test: the fractions of the points that are held out.
        split_seed: of the points and of the split.
    """

    def __init__(
        self,
        count: int = 200,
        batch_size: int = 50,
        validation: float = 0.1,
        test: float = 0.2,
        split_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, validation, test, split_seed)
        self.count = _checked(count)

    def read(self) -> Samples:
        x = 10 * torch.rand(self.count, 1, generator=_generator(self), dtype=torch.float64) - 5
        return samples(*(values.to(torch.get_default_dtype()) for values in (x, x.sin())))

    @cached_property
    def facts(self) -> Facts:
        train = self.part("train")
        both = *standardization(train.inputs), *standardization(train.targets)
        return Facts("regression", (1,), ("x",), ("y",), (), train.size, *both)

    def read_inputs(self, file: Path, facts: Facts, targets: bool) -> tuple[Samples, list[Any]]:
        """A table with a column x, and a column y if targets are needed."""
        return Table(file, "y", "regression", ["x"]).read_inputs(file, facts, targets)


class Trajectories(Data):
    """Solutions of a differential equation. A network predicts each from its first state.

    Arguments:
        count: number of solutions.
        batch_size: solutions per batch.
        validation, test: the fractions of the solutions that are held out.
        split_seed: of the first states and of the split.
    """

    components: tuple[str, ...]

    def __init__(
        self,
        count: int = 100,
        batch_size: int = 20,
        validation: float = 0.1,
        test: float = 0.2,
        split_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, validation, test, split_seed)
        self.count = _checked(count)

    @abstractmethod
    def solutions(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Times (count, points) and states (count, points, d), from random numbers (count, 2) in [0, 1], float64."""

    def read(self) -> Samples:
        draw = torch.rand(self.count, 2, generator=_generator(self), dtype=torch.float64)
        times, values = (found.to(torch.get_default_dtype()) for found in self.solutions(draw))
        return samples(values[:, 0], values, times)

    @cached_property
    def facts(self) -> Facts:
        train = self.part("train")
        mean, scale = standardization(train.targets.flatten(0, 1))
        names = self.components
        return Facts("series", (len(names),), names, names, samples=train.size, mean=mean, scale=scale)

    def read_inputs(self, file: Path, facts: Facts, targets: bool) -> tuple[Samples, list[Any]]:
        """A file as that of `Series`."""
        return Series(file, values=list(self.components)).read_inputs(file, facts, targets)


class StiffSystem(Trajectories):
    """z' = -20 (z - cos min(t, 2)) from random times t in [0, 2], over a time of 2, at 21 points.

    The state is (z, t), so that a field that does not depend on time can learn it.
    """

    components = ("z", "t")

    def solutions(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        begin, z0 = problems.HORIZON * draw[:, :1], 2 * draw[:, 1:] - 0.5
        times = torch.linspace(0, problems.HORIZON, 21, dtype=draw.dtype).expand(len(draw), -1)
        clock = begin + times
        return times, torch.stack([problems.stiff_solution(clock, begin, z0), clock], dim=2)


class PredatorPrey(Trajectories):
    """z1' = 2/3 z1 - 4/3 z1 z2, z2' = z1 z2 - z2 from (1, z2) with z2 in [1, 1.8], on [0, 10], at 51 points."""

    components = ("prey", "predators")

    def solutions(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        start = torch.stack([torch.ones_like(draw[:, 0]), 1 + 0.8 * draw[:, 0]], dim=1)
        times = torch.linspace(0, 10, 51, dtype=draw.dtype)
        states = rs.odeint(problems.predator_and_prey, start, times, rtol=1e-8, atol=1e-8).states
        return times.expand(len(draw), -1), states.transpose(0, 1)


def _checked(count: int) -> int:
    if count < 3:
        raise ValueError(f"count must be 3 or more, for training, validation and test samples, got {count}.")
    return count


def _generator(data: Data) -> torch.Generator:
    return torch.Generator().manual_seed(data.split_seed)
