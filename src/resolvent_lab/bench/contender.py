"""Contenders: they run training steps of a task, and return states and gradients."""

import copy
import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.layers import remade
from resolvent_lab.bench.measure import peak_bytes
from resolvent_lab.bench.task import Convert, Task, with_layers

LEARNING_RATE = 1e-3

PASSES_TO_COMPILE = 3
"""Compiled layers choose a number of steps in the first one, compile in the second, and may correct it there."""

KINDS = ("eager", "compiled", "graph")
"""How a contender is executed. Only contenders of the same kind are compared with each other."""


@dataclass(frozen=True)
class StepResult:
    """The states and gradients of a contender.

    Attributes:
        states: for each block of the model, (num_steps + 1, batch, *shape), the input and the output of each layer.
        gradients: in the order of the model's parameters.
    """

    states: list[Tensor]
    gradients: list[Tensor]


class Contender(ABC):
    """One implementation of a training step ("train") and of a forward pass without gradients ("infer").

    Attributes:
        name: that of an explicit network begins with "explicit", that of one of this library's with "resolvent".
        kind: one of `KINDS`.
    """

    name: str
    kind: str = "eager"

    @abstractmethod
    def seconds(self, action: str, repeats: int) -> float:
        """The mean time of a step."""

    @abstractmethod
    def outcome(self) -> StepResult:
        """States and gradients of one training step."""

    @abstractmethod
    def peak(self) -> int:
        """Peak memory of a training step in bytes, beyond what was allocated before."""

    def close(self) -> None:
        """Releases resources, such as processes."""
        return


class TorchContender(Contender):
    """Layers in PyTorch, in this process.

    Arguments:
        name, kind: see `Contender`.
        task: the task.
        convert: makes the layers.
        wrap: makes what is called in place of the model, by a compiler or as a CUDA graph.
        twin: makes eager layers that compute the same as a CUDA graph, for its outcome and its memory: a graph shows no
            states, and keeps its memory.
    """

    def __init__(
        self,
        name: str,
        task: Task,
        convert: Convert,
        kind: str = "eager",
        wrap: Callable[[nn.Module], Callable[..., Any]] | None = None,
        twin: Convert | None = None,
    ) -> None:
        self.name, self.task, self.kind = name, task, kind
        self.twin = convert if twin is None else twin
        self.model = with_layers(task.model, convert)
        self.called: Callable[..., Any] = self.model if wrap is None else wrap(self.model)
        self.device = next(self.model.parameters()).device
        self.batch: Sequence[Tensor] = task.batch
        generator = torch.Generator().manual_seed(0)
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        moves = [torch.randn(weight.shape, generator=generator).sign().to(weight) for weight in weights]
        self.weights = [weights, [w + LEARNING_RATE * move for w, move in zip(weights, moves, strict=True)]]

    def seconds(self, action: str, repeats: int) -> float:
        act, change = {"train": (self.train, self._update), "infer": (self.infer, self._renew)}[action]
        total = 0.0
        for _ in range(repeats):
            change()
            self._wait()
            start = time.perf_counter()
            act()
            self._wait()
            total += time.perf_counter() - start
        return total / repeats

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.task.loss(self.called, self.batch).backward()

    @torch.no_grad()
    def infer(self) -> None:
        self.task.loss(self.called, self.batch)

    @torch.no_grad()
    def _update(self) -> None:
        """Moves the weights as far as a step of Adam does, and back the next time.

        Warm starts are then as good as in training, and normalised weights have to be computed again.
        """
        self.weights.reverse()
        for parameter, weight in zip(self.model.parameters(), self.weights[0], strict=True):
            parameter.copy_(weight)

    def _renew(self) -> None:
        """Changes the data, so that no result of the last forward pass can be used again."""
        self.batch = [
            part + 1e-3 * torch.randn_like(part) if part.is_floating_point() else part for part in self.task.batch
        ]

    def outcome(self) -> StepResult:
        task = self.task
        wrapped = (lambda block: Recorded(self.twin(block))) if task.states is None else self.twin
        model = with_layers(task.model, wrapped)
        recorded = [module for module in model.modules() if isinstance(module, Recorded)]
        for _ in range(PASSES_TO_COMPILE if self.kind == "compiled" else 1):
            model.zero_grad(set_to_none=True)
            for module in recorded:
                module.seen.clear()
            task.loss(model, task.batch).backward()
        if task.states is None:
            states = [states for module in recorded for states in module.seen]
        else:
            states = task.states(model, task.batch)
        return StepResult(states, [_gradient(parameter) for parameter in model.parameters()])

    def peak(self) -> int:
        if self.kind == "graph":
            return TorchContender(self.name, self.task, self.twin).peak()
        for _ in range(PASSES_TO_COMPILE):
            self.train()
        self.model.zero_grad(set_to_none=True)
        return peak_bytes(self.train, self.device)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Recorded(nn.Module):
    """Records the states of its layers."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.trajectory(x).states[-1]

    def trajectory(self, x: Tensor) -> Any:
        trajectory = self.layers.trajectory(x)
        self.seen.append(trajectory.states.detach())
        return trajectory


def exact(task: Task) -> StepResult:
    """The outcome in double precision with a tolerance of 1e-9: the reference for gradients."""
    batch = [part.double() if part.is_floating_point() else part for part in task.batch]
    double = dataclasses.replace(task, model=copy.deepcopy(task.model).double().eval(), batch=batch)
    return TorchContender("exact", double, partial(remade, stopping=rs.Stopping(rtol=1e-9))).outcome()


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
