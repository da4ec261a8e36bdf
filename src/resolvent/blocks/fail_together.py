"""`FailTogether`: an error of one process ends the training of all."""

import dataclasses
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from resolvent.blocks.block import Block
from resolvent.blocks.equilibrium import Equilibrium
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.failure import Defer
from resolvent.equation.options import SolveOptions
from resolvent.equation.torch_func import all_true
from resolvent.errors import ResolventError


class FailTogether:
    """Makes all processes of a distributed training raise if a solve fails, or the loss is not finite, in one of them.

        for x, y in batches:
            with rs.blocks.FailTogether(network) as ranks:
                loss = loss_of(network(x), y)
                ranks.check(loss)
                loss.backward()
            optimizer.step()

    Without it one process raises, and the others wait for its gradients until their communication times out. Here
    errors of solves are kept, and raised where all processes meet: in `check`, and on exit for those of the backward
    pass. The processes exchange one number each time, and the messages if there are any. Whatever else raises before
    `check`, such as an input that is not finite, ends all processes too. What raises in the backward pass besides the
    solves of blocks does not: leave that to the launcher, such as torchrun.

    Policies other than on_failure="raise" stay as they are: a process that masks samples goes on. In a single process
    `check` still refuses a loss that is not finite.

    Arguments:
        model: a module with blocks or equilibria, also inside of `DistributedDataParallel`.
        group: the process group; None takes the default one.
    """

    def __init__(self, model: nn.Module, group: "dist.ProcessGroup | None" = None) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be an nn.Module, whose blocks can be found, got {model!r}.")
        self.model, self.group = model, group
        self._defer = Defer()
        self._before: list[tuple[Block | Equilibrium, SolveOptions]] = []
        self._open = self._checked = self._over = False

    def __enter__(self) -> Self:
        if self._open:
            raise ValueError("the context is open already: leave it before it is entered again.")
        self._defer.error = None
        self._open, self._checked, self._over = True, False, False
        if _world(self.group) > 1:
            blocks = [block for block in self.model.modules() if isinstance(block, Block | Equilibrium)]
            self._before = [(block, block.options) for block in blocks]
            for block, options in self._before:
                block.options = _deferring(options, self._defer)
        return self

    def check(self, loss: Tensor | None = None) -> None:
        """Raises in all processes if a solve has failed, or the loss is not finite, in one of them.

        Call it once, between the loss and its backward pass.
        """
        error: Exception | None = self._defer.error
        if error is None and loss is not None and not all_true(loss.detach().isfinite()):
            error = ResolventError(f"the loss is not finite: {loss.detach()}.")
        self._agree(error)
        self._checked = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for block, options in self._before:
            block.options = options
        self._before, self._open = [], False
        if error is None:
            self._agree(self._defer.error)
        elif not (self._checked or self._over):  # The others are on their way to `check`.
            self._tell(f"{type(error).__name__}: {error}")

    def _agree(self, error: Exception | None) -> None:
        """Raises the error, and that of another process in the processes that have none."""
        others = self._tell(None if error is None else str(error))
        if error is not None:
            raise error
        if others:
            rank, message = others[0]
            raise ResolventError(f"Process {rank} failed, and all others end with it. It said:\n{message}")

    def _tell(self, message: str | None) -> list[tuple[int, str]]:
        """The numbers and messages of the processes that have one."""
        world = _world(self.group)
        if world == 1:
            return []
        count = torch.tensor(int(message is not None), device=_device(self.model))
        dist.all_reduce(count, group=self.group)
        if not int(count):
            return []
        self._over = True
        messages: list[str | None] = [None] * world
        dist.all_gather_object(messages, message, group=self.group)
        return [(rank, message) for rank, message in enumerate(messages) if message is not None]


def _world(group: "dist.ProcessGroup | None") -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def _device(model: nn.Module) -> torch.device:
    """Where the numbers of a process are: the backend of its group communicates between such devices."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def _deferring(options: SolveOptions, defer: Defer) -> SolveOptions:
    """The options with failures that would raise deferred."""
    adjoint = options.adjoint
    if isinstance(adjoint, ImplicitAdjoint) and adjoint.on_failure == "raise":
        adjoint = dataclasses.replace(adjoint, on_failure=defer)
    on_failure = defer if options.on_failure == "raise" else options.on_failure
    return dataclasses.replace(options, adjoint=adjoint, on_failure=on_failure)
