"""Groups of small states by Newton's method, compiled."""

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.blocks.strategies.all_together import together
from resolvent.blocks.strategies.compiling import CompiledGroups, as_steps, next_count
from resolvent.blocks.strategies.first_order import FirstOrder, first_order
from resolvent.blocks.strategies.group_equation import Group, Solved, group_of
from resolvent.blocks.strategies.newton_graph import EVALUATIONS, NewtonStep, newton_step, solve_group
from resolvent.schemes.scheme import Step
from resolvent.solvers.auto import NEWTON_ALONE
from resolvent.solvers.newton import Newton

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# The step counts that are compiled; the next larger one is used, six for a group that needs five.
_STEPS = (2, 3, 4, 6, 8)

_NEWTON = Newton()


class NewtonGroups(CompiledGroups):
    """Newton's method. The solve and its derivative are one function."""

    method = "Newton's method"

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        self._unrolled = False

    def attempt(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...] | None:
        if numbers.start not in self.steps or not self.takes(x):
            return None
        layers, steps = len(numbers), self.steps[numbers.start]
        try:
            states, result = self._call(layers, steps, group_of(pass_, numbers, x), x)
        except Exception as error:
            self.refuse(error)
            return None
        if not bool(result.good):  # Waits for the device once per group.
            return None
        return as_steps(pass_.options, FirstOrder.apply(states), result, _NEWTON, EVALUATIONS + steps)

    def _call(self, layers: int, steps: int, group: Group, x: Tensor) -> tuple[Tensor, Solved]:
        what = f"{steps} Newton steps of {layers} layers"
        function = self.compiled((layers, steps), solve_group, what, x)
        if self._unrolled:
            return function(group, x, layers, steps, newton_step)
        try:
            return function(group, x, layers, steps, _compiled_once())
        except Exception:
            # A region cannot hold a field that uses views of its weights. Other errors come again.
            self._unrolled = True
            return self._call(layers, steps, group, x)

    def learn(self, pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...]:
        steps = together(pass_, numbers, x, NEWTON_ALONE)
        solutions = [solution for step in steps for solution in step.solutions]
        if len(solutions) == 1:
            needed = max(int(solutions[0].steps.max()), self.steps.get(numbers.start, 0))
            if (count := next_count(_STEPS, needed)) is not None:
                self.steps[numbers.start] = count
        # Which derivatives exist must not depend on whether the block is compiled yet.
        return tuple(map(first_order, steps))


@functools.cache
def _compiled_once() -> NewtonStep:
    """The step as a region that is compiled once, however many steps a graph has: made late, as it loads dynamo."""
    region: NewtonStep = torch.compiler.nested_compile_region(newton_step)
    return region
