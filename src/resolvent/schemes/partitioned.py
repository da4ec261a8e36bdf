"""Runge-Kutta schemes with one table for each half of the state."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.solution import Solution
from resolvent.schemes.halves import as_halved
from resolvent.schemes.interval import Interval
from resolvent.schemes.linear_form import LinearForm, pair_form
from resolvent.schemes.order_conditions import tree_order
from resolvent.schemes.runge_kutta import combine, predict_all, repeat
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.tableau import Tableau


@dataclass(frozen=True)
class PartitionedRungeKutta(Scheme):
    """A Runge-Kutta method with a table of its own for each half of the state,

        q-stages = q + h sum_j a_ij V_j,      p-stages = p + h sum_j a^_ij K_j,

    for fields in which each half may depend on both. Explicit if both tables are; otherwise all stages are found
    together. For separable fields the explicit `Symplectic` schemes are the same and cheaper: `VERLET` is the pair
    (LOBATTO_IIIA, LOBATTO_IIIB).

    Arguments:
        position: the table for q.
        momentum: the table for p, with the same nodes.

    Reference: Reshniak & Webster, equation (7); Hairer, Lubich & Wanner, Geometric numerical integration, section II.2.
    """

    position: Tableau
    momentum: Tableau

    def __post_init__(self) -> None:
        if self.position.c != self.momentum.c:
            raise ValueError(
                f"both tables must have the same nodes c, for the field is evaluated once for both halves, "
                f"got {self.position.c} and {self.momentum.c}."
            )

    @property
    def order(self) -> int:
        return min(self.position.order, self.momentum.order)

    @property
    def inverse(self) -> "PartitionedRungeKutta":
        return PartitionedRungeKutta(self.position.inverse, self.momentum.inverse)

    @property
    def implicit(self) -> bool:
        return not (self.position.explicit and self.momentum.explicit)

    @property
    def linear_form(self) -> LinearForm:
        return pair_form(self.position.A, self.position.b, self.momentum.A, self.momentum.b)

    @property
    def acts_on_halves(self) -> bool:
        return True

    def order_by_conditions(self) -> int:
        return tree_order([(tableau.A, tableau.b) for tableau in (self.position, self.momentum)])

    def step(self, interval: Interval, carry: Carry) -> Step:
        field, x, nodes = as_halved(interval.field.call), carry.states[0], self.position.c

        def weigh(rows: tuple[Sequence[float], Sequence[float]], slopes: Sequence[Tensor]) -> Tensor:
            halves = zip(*map(field.split, slopes), strict=True)
            moved = (combine(torch.zeros_like(half[0]), row, half) for row, half in zip(rows, halves, strict=True))
            return field.join(*moved)

        def mix(slopes: Sequence[Tensor]) -> Tensor:
            return torch.stack([weigh(rows, slopes) for rows in zip(self.position.A, self.momentum.A, strict=True)], 1)

        solutions: tuple[Solution, ...] = ()
        if self.implicit:
            solutions = (interval.resolve_together(nodes, mix, repeat(x, len(nodes)), predict_all(interval, nodes)),)
            slopes = [interval.evaluate(c, w) for c, w in zip(nodes, solutions[0].value.unbind(1), strict=True)]
        else:
            slopes = []
            for i, c in enumerate(nodes):
                rows = (self.position.A[i][:i], self.momentum.A[i][:i])
                w = x + interval.step * weigh(rows, slopes) if slopes else x
                slopes.append(interval.evaluate(c, w))
        y = x + interval.step * weigh((self.position.b, self.momentum.b), slopes)
        return Step(Carry((y,)), solutions)
