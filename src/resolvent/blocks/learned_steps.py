"""How many solver steps a recorded pass needs: learned from eager passes, and raised where samples do not converge."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from resolvent.blocks.fixed_steps import Steps, fixed_steps, solving
from resolvent.equation.solution import Solution, Status
from resolvent.equation.torch_func import whole

# The numbers that are tried. Each further step costs an evaluation of the field, so small numbers are tried one by one.
_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)


def learned_steps(model: nn.Module, inputs: Sequence[Tensor], steps: Sequence[Steps] | None = None) -> list[Steps]:
    """The fewest steps with which all samples of the inputs converge, found by passes through the model, with their
    backward passes where autograd records. A solve that 64 steps do not suffice for makes 64.

    Arguments:
        model: an `nn.Module`.
        inputs: its inputs.
        steps: where to begin; they are only raised.
    """
    known = [Steps(1, 1) for _ in solving(model)] if steps is None else list(steps)
    while True:
        raised = raise_steps(known, unconverged(model, inputs, known).tolist())
        if raised == known:
            return known
        known = raised


def raise_steps(steps: Sequence[Steps], failed: Sequence[Sequence[int]]) -> list[Steps]:
    """The next numbers of steps where solves of samples failed.

    Arguments:
        steps: of each block.
        failed: how many failed, for each block and its two kinds of solves.
    """
    return [
        Steps(*(_after(count) if failures else count for count, failures in zip(own, counts, strict=True)))
        for own, counts in zip(steps, failed, strict=True)
    ]


def _after(count: int) -> int:
    return next((number for number in _NUMBERS if number > count), max(count, _NUMBERS[-1]))


def unconverged(model: nn.Module, inputs: Sequence[Tensor], steps: Sequence[Steps]) -> Tensor:
    """(blocks, 2), how many solves of samples do not converge in a pass with these steps: of layers, and of linear
    systems."""
    counts = no_failures(steps, inputs[0].device)
    with fixed_steps(model, steps, partial(count_failures, counts)):
        outputs = [x for x in tree_leaves(model(*inputs)) if isinstance(x, Tensor) and x.requires_grad]
        leaves = [x for x in (*inputs, *model.parameters()) if x.requires_grad]
        if outputs and leaves:
            torch.autograd.grad(outputs, leaves, [_cotangent(x) for x in outputs], allow_unused=True)
    return counts


def no_failures(steps: Sequence[Steps], device: torch.device) -> Tensor:
    """Zeros, for `count_failures`."""
    return torch.zeros(len(steps), 2, dtype=torch.int64, device=device)


@torch.no_grad()
def count_failures(counts: Tensor, block: int, solution: Solution) -> None:
    """Adds the samples that did not converge to the counts, (blocks, 2), in place."""
    counts[block, int(solution.linear)].add_((whole(solution.status) != Status.CONVERGED).sum())


def _cotangent(like: Tensor) -> Tensor:
    """A fixed vector without structure: random numbers would change those of the training."""
    return torch.arange(like.numel(), dtype=torch.float64, device=like.device).cos().reshape(like.shape).to(like.dtype)
