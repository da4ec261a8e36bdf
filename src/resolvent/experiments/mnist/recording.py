"""Passes through a network that are recorded once and replayed as CUDA graphs."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.experiments.robustness.solving import solved_otherwise
from resolvent.models import ImplicitResNet
from resolvent.schemes.solving import Solving

Outcome = tuple[Tensor, Tensor]


class Pass(nn.Module):
    """Images to logits, and to the number of solves of samples that did not converge."""

    def __init__(self, model: ImplicitResNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Outcome:
        logits, trajectories = self.model.passage(images)
        return logits, failures(trajectories, logits)


class Recorder:
    """Passes as CUDA graphs, one for each shape and mode: a small network is held up by the launches of its kernels.

    A graph cannot ask whether a solve is done. All make the same number of steps; samples that have converged do not
    move any more, and those that have not are counted. The last batch of an epoch may be smaller, and has its own.

    Arguments:
        model: on a GPU.
        steps: of each solve, forward and backward.
    """

    def __init__(self, model: ImplicitResNet, steps: int) -> None:
        self.model = model
        self.steps = steps
        self._recorded: dict[object, Callable[[Tensor], Outcome]] = {}

    def __call__(self, images: Tensor) -> Outcome:
        kind = images.shape, images.requires_grad, self.model.training
        if kind not in self._recorded:
            example = images.detach().clone().requires_grad_(images.requires_grad)
            with never_looking(self.model, self.steps):
                recorded = torch.cuda.make_graphed_callables(Pass(self.model), (example,))
            self._recorded[kind] = cast(Callable[[Tensor], Outcome], recorded)
        return self._recorded[kind](images)


class Scores(nn.Module):
    """The logits alone, of any passes through a model."""

    def __init__(self, model: ImplicitResNet, passes: Callable[[Tensor], Outcome]) -> None:
        super().__init__()
        self.model = model
        self.passes = passes

    def forward(self, images: Tensor) -> Tensor:
        return self.passes(images)[0]


def never_looking(model: nn.Module, steps: int) -> AbstractContextManager[None]:
    """Blocks of the model solve with a number of steps that is fixed; afterwards they are as before."""

    def blind(solving: Solving) -> Solving:
        stopping = dataclasses.replace(solving.stopping or rs.Stopping(), max_steps=steps, check_every=0)
        return dataclasses.replace(solving, stopping=stopping, on_failure="ignore")

    return solved_otherwise(model, blind)


def failures(trajectories: Sequence[rs.Trajectory], like: Tensor) -> Tensor:
    """How many solves of samples did not converge, as a tensor of no dimension."""
    failed = [(~solution.converged).sum() for trajectory in trajectories for solution in trajectory.solutions]
    return torch.stack(failed).sum().to(like) if failed else like.new_zeros(())
