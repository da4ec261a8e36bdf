"""Runge-Kutta schemes from a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.solution import Solution
from resolvent.schemes.interval import Interval, Number
from resolvent.schemes.linear_form import LinearForm, as_complex, tree_order
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.tableau import Tableau


@dataclass(frozen=True)
class RungeKutta(Scheme):
    """The Runge-Kutta method of a `Tableau`. The table determines how a step is computed:

    - explicit stages are evaluations of the field;
    - stages that depend on themselves are resolvents, w = b + a_ii h F(t + c_i h, w), one after the other;
    - if stages depend on later ones, all are solved together, as one resolvent of the stacked stages.

    The field is not evaluated again at a solved stage: its slope follows from the equation, h k = (w - b) / a_ii, which
    is also accurate for stiff fields. The division amplifies the error of w, so the tolerance is tightened by the same
    factor.

    Arguments:
        tableau: one of `resolvent.schemes.tableaux`, or your own.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.8.
    """

    tableau: Tableau

    def __post_init__(self) -> None:
        if not isinstance(self.tableau, Tableau):
            raise ValueError(f"tableau must be a Tableau such as tableaux.RK4, got {self.tableau!r}.")

    @property
    def order(self) -> int:
        return self.tableau.order

    @property
    def implicit(self) -> bool:
        return not self.tableau.explicit

    @property
    def inverse(self) -> "RungeKutta":
        return RungeKutta(self.tableau.inverse)

    @property
    def linear_form(self) -> LinearForm:
        A, b = as_complex(self.tableau.A), as_complex(self.tableau.b)
        return LinearForm(A, torch.ones_like(b)[:, None], b[None], as_complex([[1.0]]))

    @property
    def stage_norm(self) -> float:
        if self.tableau.diagonal:
            return max(abs(row[i]) for i, row in enumerate(self.tableau.A))
        return super().stage_norm

    @property
    def algebraically_stable(self) -> bool:
        return self.tableau.algebraically_stable

    def order_by_conditions(self) -> int:
        return tree_order([(self.tableau.A, self.tableau.b)])

    def step(self, interval: Interval, carry: Carry) -> Step:
        x = carry.states[0]
        return self._one_by_one(interval, x) if self.tableau.diagonal else self._together(interval, x)

    def _one_by_one(self, interval: Interval, x: Tensor) -> Step:
        table, h = self.tableau, interval.step
        increments: list[Tensor] = []  # h k_i
        solutions: list[Solution] = []
        w = x
        for i, (row, c) in enumerate(zip(table.A, table.c, strict=True)):
            b, a = combine(x, row[:i], increments), row[i]
            if a == 0:
                w = b
                increments.append(h * interval.evaluate(c, w))
                continue
            before = solutions[-1] if solutions else None
            solutions.append(interval.resolve(c, b, a, interval.predict(c), 1 / abs(a), before))
            w = solutions[-1].value
            increments.append((w - b) / a)
        y = w if table.stiffly_accurate else combine(x, table.b, increments)
        return Step(Carry((y,)), tuple(solutions))

    def _together(self, interval: Interval, x: Tensor) -> Step:
        table = self.tableau
        weights = table.recovery
        amplification = 1.0 if weights is None else sum(abs(v) for v in weights)
        solution = interval.resolve_together(
            table.c, table.matrix(x), repeat(x, len(table.c)), predict_all(interval, table.c), amplification
        )
        stages = solution.value.unbind(1)
        if table.stiffly_accurate:
            y = stages[-1]
        elif weights is not None:
            y = combine(x, weights, [w - x for w in stages])
        else:
            increments = [interval.step * interval.evaluate(c, w) for c, w in zip(table.c, stages, strict=True)]
            y = combine(x, table.b, increments)
        return Step(Carry((y,)), (solution,))


def combine(x: Tensor, weights: Sequence[Number], terms: Sequence[Tensor]) -> Tensor:
    """x plus the weighted sum of the terms."""
    for weight, term in zip(weights, terms, strict=True):
        if isinstance(weight, Tensor) or weight != 0:
            x = x + weight * term
    return x


def repeat(x: Tensor, stages: int) -> Tensor:
    """(batch, *shape) to (batch, stages, *shape), the same for each stage."""
    return x.unsqueeze(1).expand(-1, stages, *x.shape[1:])


def predict_all(interval: Interval, nodes: Sequence[float]) -> Tensor | None:
    """The guesses for all stages, (batch, stages, *shape), or None."""
    guesses = [guess for guess in map(interval.predict, nodes) if guess is not None]
    return torch.stack(guesses, dim=1) if guesses else None
