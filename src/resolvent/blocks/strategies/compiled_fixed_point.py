"""Groups of layers that contract by the fixed point, compiled."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.blocks.strategies.all_together import pose, together
from resolvent.blocks.strategies.compiling import LOG, CompiledGroups, as_steps, next_count, solution_of
from resolvent.blocks.strategies.first_order import first_order, refuse_second
from resolvent.blocks.strategies.fixed_point_graph import Transposed, solve_group, solve_transposed
from resolvent.blocks.strategies.group_equation import Group, group_of
from resolvent.equation.mixing import LayerMixing
from resolvent.equation.solution import Work
from resolvent.schemes.scheme import Step
from resolvent.solvers.auto import AutoGroup
from resolvent.solvers.picard import Picard
from resolvent.solvers.resolve import resolve_with

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# The step counts that are compiled; the next larger one is used, ten for a group that needs nine.
_STEPS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
# After so many groups in a row that the fixed point alone did not solve, or their backward systems, it is not tried for
# so many groups.
_MOST_FAILURES, _PAUSE = 5, 200
# After so many solved groups, the numbers of steps are taken from the last one: layers may contract faster by then.
_REVIEW = 100
# The fewest unknowns of a state for which eager mode tries the fixed point.
_FEWEST_UNKNOWNS = 3

_PICARD = Picard()

Cotangents = tuple[Tensor, Tensor]


class FixedPointGroups(CompiledGroups):
    """The fixed point for any field whose layers contract. The backward system is a second function, which makes a
    number of steps of its own."""

    method = "the fixed point"

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.backward_steps = 0
        self._failures = {"forward": 0, "backward": 0}
        self._paused = 0
        self._solved = 0
        self._warned = False

    def pauses(self) -> bool:
        """Whether the next group is left to other methods."""
        self._paused = max(0, self._paused - 1)
        return self.refused or self._paused > 0

    def attempt(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...] | None:
        steps, layers, recording = self.steps, len(numbers), torch.is_grad_enabled()
        if steps == 0 or not self.takes(x):
            return None
        group = group_of(pass_, numbers, x, contracting=True)
        what = f"{steps} fixed-point steps of {layers} layer{'s' * (layers > 1)}"
        function = self.compiled((layers, steps, recording), solve_group, what, x)
        try:
            states, slopes, result = function(group, x, layers, steps)
        except Exception as error:
            self.refuse(error)
            return None
        if not bool(result.good):  # Waits for the device once per group.
            return None
        self._review(result.steps)
        if recording:
            transposed = partial(self._transposed, pass_, numbers, group, x.detach(), result.stages)
            states = _States.apply(states, x, slopes, transposed)
        return as_steps(pass_.options, states, result, _PICARD, steps + 1)

    def learn(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...]:
        alone = len(numbers) == 1
        steps = tuple(pass_.in_turn(numbers, x)) if alone else together(pass_, numbers, x, _plan(x))
        solutions = [solution for step in steps for solution in step.solutions]
        count = None
        if len(solutions) == 1 and solutions[0].quick and len(solutions[0].solvers) == 1:
            count = next_count(_STEPS, max(int(solutions[0].steps.max()), self.steps))
        self.steps = count or self.steps
        self._note("forward", count is not None)
        return tuple(map(first_order, steps))

    def _review(self, made: Tensor) -> None:
        """Lowers the numbers of steps now and then. If others need more, they are raised again."""
        self._solved += 1
        if self._solved % _REVIEW == 0:
            self.steps, self.backward_steps = next_count(_STEPS, int(made.max())) or self.steps, 0

    def _note(self, which: str, solved: bool) -> None:
        """Notes whether the fixed point solves a group, or could with more steps."""
        self._failures[which] = 0 if solved else self._failures[which] + 1
        if self._failures[which] < _MOST_FAILURES:
            return
        if not self._warned:
            LOG.warning(
                'mode="compiled": %d steps of the fixed point do not solve these layers, so they are solved by other '
                "methods for a while.",
                _STEPS[-1],
            )
        self._failures[which], self._paused, self._warned = 0, _PAUSE, True

    def _transposed(
        self, pass_: "Pass", numbers: range, group: Group, x: Tensor, stages: Tensor, g: Tensor
    ) -> Cotangents:
        """The cotangents of x and of the slopes for that of the states."""
        steps = max(self.steps, self.backward_steps)
        what = f"{steps} backward steps of {len(numbers)} layers"
        function = self.compiled((len(numbers), steps, "backward"), solve_transposed, what, x)
        try:
            result: Transposed = function(group, stages, g, steps)
        except Exception as error:
            self.refuse(error)
            return eager_transposed(pass_, numbers, group, x, stages, g)
        if not bool(result.slopes.good):
            more = next_count(_STEPS, steps + 1)
            self.backward_steps = more or steps
            self._note("backward", more is not None)
            return eager_transposed(pass_, numbers, group, x, stages, g)
        self._note("backward", True)
        if pass_.options.observe is not None:
            pass_.options.observe(solution_of(result.slopes, _PICARD, Work(vjps=steps + 1), linear=True))
        return result.x, result.slopes.stages


def eager_transposed(pass_: "Pass", numbers: range, group: Group, x: Tensor, stages: Tensor, g: Tensor) -> Cotangents:
    """What `solve_transposed` computes, by the solvers of eager mode.

    It solves (I - M J)^T z = J^T L^T g for z = J^T v, and v = L^T g + M^T z.
    """
    mix, sums = LayerMixing(group.theta), LayerMixing(1.0)
    right = sums(g, transposed=True)
    F, b, h, options = pose(pass_, numbers, x, _plan(x))
    with torch.enable_grad():
        w, b = stages.clone().requires_grad_(), b.clone().requires_grad_()
        (image,) = torch.autograd.grad(group.h * group.slopes(w), w, right)
        # The derivative of the stages with respect to b is the inverse of I - M J.
        (z,) = torch.autograd.grad(resolve_with(options, F, b, h, stages).value, b, image)
    return (g + z).sum(1), right + mix(z, transposed=True)


def _plan(x: Tensor) -> AutoGroup:
    """That of eager mode, which begins with the fixed point."""
    return AutoGroup(max(_FEWEST_UNKNOWNS, math.prod(x.shape[1:])))


class _States(torch.autograd.Function):
    """The states of a solved group, as a function of the state before it and of the slopes in its stages."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, x: Tensor, slopes: Tensor, transposed: Callable[[Tensor], Cotangents]
    ) -> Tensor:
        ctx.transposed = transposed
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second()
        x, slopes = ctx.transposed(cotangents[0])
        return None, x, slopes, None
