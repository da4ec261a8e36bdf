"""Passes through a network that are recorded once and replayed as CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.models import ImplicitResNet

Outcome = tuple[Tensor, Tensor]


class Pass(nn.Module):
    """Images to logits, and to the number of solves of samples that did not converge."""

    def __init__(self, model: ImplicitResNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Outcome:
        logits, trajectories = self.model.forward_with_trajectories(images)
        return logits, failures(trajectories, logits)


class PassWithTangents(nn.Module):
    """Images and directions to logits, to their derivatives in these directions, and to the number of solves of
    samples that did not converge."""

    def __init__(self, model: ImplicitResNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, tangents, trajectories, solves = rs.jvp(self.model, images, directions)
        return logits, tangents, failures(trajectories, logits, solves)


class Recorder:
    """Passes as CUDA graphs, one for each shape and mode: a small network is held up by the launches of its kernels.

    A graph cannot ask whether a solve is done. All make the same number of steps; samples that have converged do not
    move any more, and those that have not are counted. The last batch of an epoch may be smaller, and has its own.

    Arguments:
        passing: makes a pass of a model, `Pass` or `PassWithTangents`.
        model: on a GPU.
        steps: of each solve, forward and backward.
    """

    def __init__(self, passing: type[Pass | PassWithTangents], model: ImplicitResNet, steps: int) -> None:
        self.passing = passing
        self.model = model
        self.steps = steps
        self._recorded: dict[object, Callable[..., Any]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        kind = tuple((x.shape, x.requires_grad) for x in inputs), self.model.training
        if kind not in self._recorded:
            examples = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
            with never_looking(self.model, self.steps):
                recorded = torch.cuda.make_graphed_callables(self.passing(self.model), examples)
            self._recorded[kind] = cast(Callable[..., Any], recorded)
        return self._recorded[kind](*inputs)


class Scores(nn.Module):
    """The logits alone, of any passes through a model."""

    def __init__(self, model: ImplicitResNet, passes: Callable[[Tensor], Outcome]) -> None:
        super().__init__()
        self.model = model
        self.passes = passes

    def forward(self, images: Tensor) -> Tensor:
        return self.passes(images)[0]


@contextmanager
def never_looking(model: nn.Module, steps: int) -> Iterator[None]:
    """Blocks of the model solve with a fixed number of steps; afterwards they are as before."""
    with ExitStack() as stack:
        for block in model.modules():
            if isinstance(block, rs.Block):
                own = block.options.stopping
                stopping = rs.FixedSteps(steps, rtol=own.rtol, atol=own.atol)
                stack.enter_context(rs.blocks.solved_with(block, stopping=stopping, on_failure="ignore"))
        yield


def failures(trajectories: Sequence[rs.blocks.Trajectory], like: Tensor, others: Sequence[rs.Solution] = ()) -> Tensor:
    """How many solves of samples did not converge, as a tensor of no dimension."""
    solutions = [*others, *(solution for trajectory in trajectories for solution in trajectory.solutions)]
    failed = [(~solution.converged).sum() for solution in solutions]
    return torch.stack(failed).sum().to(like) if failed else like.new_zeros(())
