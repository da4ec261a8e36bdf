"""`Compiled`: solves theta layers by compiled functions."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from resolvent.blocks.strategies.all_together import FEWEST, AllTogether, applies, together
from resolvent.blocks.strategies.compiled_fixed_point import FixedPointGroups
from resolvent.blocks.strategies.compiled_newton import NewtonGroups
from resolvent.blocks.strategies.compiling import LOG, CompiledGroups
from resolvent.blocks.strategies.first_order import first_order
from resolvent.blocks.strategies.strategy import Strategy
from resolvent.equation.adjoint import ImplicitAdjoint
from resolvent.equation.linear_part import LinearPart
from resolvent.schemes.scheme import Step

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# Up to so many unknowns of a state Newton's method is compiled. Up to the second number it takes longer than the fixed
# point, and is for layers that do not contract. For more, compilation takes minutes.
_MOST_FOR_NEWTON, _MOST_IN_NEED = 4, 10
# On a CPU the time of larger states is that of their kernels, which compilation does not change.
_MOST_UNKNOWNS = 1024


class Compiled(Strategy):
    """`AllTogether` with the solves and their derivatives compiled by `torch.compile`.

    States of at most four unknowns are solved by Newton's method; others, up to 1,024 unknowns, by the fixed point, if
    their layers contract. If they do not, Newton's method serves up to ten unknowns. States of which fewer than three
    layers make a group are solved layer by layer. It gives first derivatives only, by one backward pass per call. Each
    compilation is logged, as "resolvent", at the level INFO.

    The step count of a group is learned: a group is solved in eager mode the first time, and whenever the compiled
    steps are not enough. This changes no result: converged samples do not move. What cannot be compiled is solved in
    eager mode, which a warning in the log says once.
    """

    def __init__(self) -> None:
        self._together = AllTogether()
        self.newton, self.fixed_point = NewtonGroups(), FixedPointGroups()
        self._declined = False

    def check(self, pass_: "Pass") -> None:
        self._together.check(pass_)
        if pass_.options.adjoint != ImplicitAdjoint():
            raise ValueError(
                'mode="compiled" gives first derivatives by rs.ImplicitAdjoint() alone, got '
                f'{pass_.options.adjoint}: take mode="parallel".'
            )

    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        if not applies(pass_, x):
            yield from pass_.in_turn(range(pass_.num_steps), x)
            return
        size = self._together.group(pass_, x)
        size = size if size >= FEWEST else 1
        groups = self._groups(pass_, x, size)
        for start in range(0, pass_.num_steps, size):
            numbers = range(start, min(start + size, pass_.num_steps))
            if groups is None:
                eager = pass_.in_turn(numbers, x) if size == 1 else together(pass_, numbers, x)
                steps = tuple(map(first_order, eager))
            else:
                steps = groups.attempt(pass_, numbers, x) or groups.learn(pass_, numbers, x)
            yield from steps
            x = steps[-1].state

    def _groups(self, pass_: "Pass", x: Tensor, size: int) -> CompiledGroups | None:
        """Who solves groups of so many layers; None for eager mode."""
        field, unknowns = pass_.vector_field, math.prod(x.shape[1:])
        small = x.dim() == 2 and unknowns <= _MOST_IN_NEED and not self.newton.refused
        if isinstance(pass_.scheme.chord, Tensor):
            self._decline("theta is learned")
        elif unknowns > _MOST_UNKNOWNS:
            self._decline(f"states of {unknowns} unknowns gain nothing; more than {_MOST_UNKNOWNS} are not compiled")
        elif size == 1 and isinstance(field.linear_part, LinearPart):
            self._decline("the field has a linear part with a solve of its own")
        elif small and unknowns <= _MOST_FOR_NEWTON:
            return self.newton
        elif not self.fixed_point.pauses():
            return self.fixed_point
        elif small:
            return self.newton
        return None

    def _decline(self, reason: str) -> None:
        if not self._declined:
            LOG.warning('mode="compiled": layers are not compiled, since %s.', reason)
        self._declined = True
