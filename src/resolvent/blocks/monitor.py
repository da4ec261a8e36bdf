"""`Monitor`: records how the solves of a model went, forward and backward."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from torch import nn

from resolvent.blocks.block import Block
from resolvent.blocks.equilibrium import Equilibrium
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution


@dataclass
class SolveRecord:
    """The solves of one block in one direction.

    Attributes:
        samples: in all solves; layers that are solved together count once.
        steps, max_steps: of the solver, per sample: their mean and the most.
        residual: the largest.
        fallbacks: samples for which the first solver was not enough, after the quick attempt of `rs.Auto`.
        failed: samples that did not reach their tolerance; under `rs.Mask` these are the masked ones.
        evaluations: calls of F.
    """

    samples: int = 0
    steps: float = 0.0
    max_steps: int = 0
    residual: float = 0.0
    fallbacks: int = 0
    failed: int = 0
    evaluations: int = 0

    def add(self, solution: Solution) -> None:
        """Adds a solve."""
        refuse_transforms("SolveRecord")
        count = solution.status.numel()
        if count == 0:
            return
        self.steps = (self.samples * self.steps + float(solution.steps.sum())) / (self.samples + count)
        self.samples += count
        self.max_steps = max(self.max_steps, int(solution.steps.max()))
        self.residual = max(self.residual, float(solution.residual.max()))
        self.fallbacks += int((solution.solver_index > int(solution.quick)).sum())
        self.failed += int((~solution.converged).sum())
        self.evaluations += solution.evaluations


class Monitor:
    """Records the solves of all blocks of a model while it is open, forward and backward.

        with rs.blocks.Monitor(model) as monitor:
            loss(model(x), y).backward()
        print(monitor)

    `monitor.log()` is a dictionary of numbers for a logger, and `monitor.reset()` begins anew, such as at each epoch.
    A solve that raises is not recorded, except backward; its error says more. Reading the numbers waits for the device
    at each solve. Layers that are solved again in the backward pass, as with memory="checkpoint", count as forward. The
    options of the blocks are changed while the monitor is open, and restored on exit.

    Arguments:
        model: a block or an equilibrium layer, or a module that contains some.

    Attributes:
        records: a `SolveRecord` for each name of a block in the model and direction, "forward" or "backward". Explicit
            layers have nothing to solve and no record.
    """

    def __init__(self, model: nn.Module) -> None:
        self._blocks = {name: block for name, block in model.named_modules() if isinstance(block, Block | Equilibrium)}
        if not self._blocks:
            raise ValueError(
                f"{type(model).__name__} contains neither a block such as rs.ThetaBlock nor an "
                "rs.Equilibrium: nothing is solved in it."
            )
        self._before: dict[str, SolveOptions] = {}
        self.records: dict[tuple[str, str], SolveRecord] = {}

    def __enter__(self) -> Self:
        if self._before:
            raise ValueError("the monitor is open already: leave its context before it is entered again.")
        for name, block in self._blocks.items():
            self._before[name] = block.options
            block.options = dataclasses.replace(block.options, observe=self._observer(name, block.options.observe))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, options in self._before.items():
            self._blocks[name].options = options
        self._before = {}

    def _observer(self, name: str, other: Callable[[Solution], None] | None) -> Callable[[Solution], None]:
        def observe(solution: Solution) -> None:
            if other is not None:
                other(solution)
            direction = "backward" if solution.linear else "forward"
            self.records.setdefault((name, direction), SolveRecord()).add(solution)

        return observe

    def reset(self) -> None:
        """Forgets all records."""
        self.records = {}

    def log(self, prefix: str = "solver") -> dict[str, float]:
        """The records as numbers with names such as "solver/layer1.0/forward/steps"."""
        return {
            "/".join(part for part in (prefix, name, direction, key) if part): float(value)
            for (name, direction), record in self.records.items()
            for key, value in dataclasses.asdict(record).items()
        }

    def __str__(self) -> str:
        rows = [["block", "direction", "samples", "steps", "most", "residual", "fallbacks", "failed", "evaluations"]]
        for (name, direction), record in self.records.items():
            numbers = [f"{record.steps:.1f}", str(record.max_steps), f"{record.residual:.1e}"]
            counts = [record.fallbacks, record.failed, record.evaluations]
            rows.append([name or "-", direction, str(record.samples), *numbers, *map(str, counts)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
