"""Partitioned schemes, which treat the two halves (q, p) of a state differently.

`PartitionedRungeKutta` has one table per half. `Symplectic` schemes (Verlet, leapfrog, RevNet) are explicit: they
update one half while the other is fixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from resolvent.equation.solution import Solution
from resolvent.schemes.interval import Interval, Number
from resolvent.schemes.linear_form import LinearForm, Rows, pair_form, tree_order
from resolvent.schemes.runge_kutta import combine, predict_all, repeat
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.tableau import Row, Tableau


@dataclass(frozen=True)
class PartitionedRungeKutta(Scheme):
    """A Runge-Kutta method with one table for each half of the state,

        q-stages = q + h sum_j a_ij V_j,      p-stages = p + h sum_j a^_ij K_j,

    for fields in which each half may depend on both. It is explicit if both tables are; otherwise all stages are solved
    together. For separable fields the explicit `Symplectic` schemes are equivalent and cheaper: `VERLET` is the pair
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


@dataclass(frozen=True)
class Symplectic(Scheme):
    """Alternates drifts q <- q + d_i h V(t, p) and kicks p <- p + k_i h K(t, q): explicit, reversible and, for a
    Hamiltonian field, symplectic.

    Each half has its own time, the sum of its moves so far; V and K are evaluated at the time of their argument. With
    one drift and one kick this is the reversible block of RevNet, q1 = q + V(p), p1 = p + K(q1).

    Arguments:
        drifts: the d_i, which sum to 1.
        kicks: the k_i, which sum to 1; the i-th follows the i-th drift.
        order: of convergence.

    Reference: Hairer, Lubich & Wanner, Geometric numerical integration, sections I.1, II.5 and VI.3; Gomez et al., The
    reversible residual network, 2017; Chang et al., Reversible architectures for arbitrarily deep residual networks,
    2018.
    """

    drifts: tuple[float, ...]
    kicks: tuple[float, ...]
    order: int = 1

    def __post_init__(self) -> None:
        if len(self.drifts) != len(self.kicks):
            raise ValueError(f"drifts and kicks come in pairs, got {len(self.drifts)} and {len(self.kicks)}.")
        for name, moves in (("drifts", self.drifts), ("kicks", self.kicks)):
            if abs(sum(moves) - 1) > 1e-12:
                raise ValueError(f"the {name} must sum to 1 for the method to converge, got {sum(moves)}.")

    @property
    def implicit(self) -> bool:
        return False

    @property
    def inverse(self) -> "Symplectic":
        return Symplectic((0.0, *self.drifts[::-1]), (*self.kicks[::-1], 0.0), self.order)

    @property
    def tables(self) -> tuple[Rows, Row, Rows, Row]:
        """A, b of q, then A, b of p: stage i of q is after drift i, stage i of p is before it and after kick i-1."""
        count = len(self.drifts)
        A = tuple(tuple(d if j <= i else 0.0 for j, d in enumerate(self.drifts)) for i in range(count))
        A_hat = tuple(tuple(k if j < i else 0.0 for j, k in enumerate(self.kicks)) for i in range(count))
        return A, self.drifts, A_hat, self.kicks

    @property
    def linear_form(self) -> LinearForm:
        return pair_form(*self.tables)

    @property
    def acts_on_halves(self) -> bool:
        return True

    def order_by_conditions(self) -> int:
        A, b, A_hat, b_hat = self.tables
        return tree_order([(A, b), (A_hat, b_hat)], separable=True)

    def step(self, interval: Interval, carry: Carry) -> Step:
        field = as_separable(interval.field.call)
        h = interval.step
        q, p = field.split(carry.states[0])
        time_q = time_p = 0.0
        for drift, kick in zip(self.drifts, self.kicks, strict=True):
            if drift != 0:
                q = q + drift * h * field.velocity(interval.time(time_p), p)
                time_q += drift
            if kick != 0:
                p = p + kick * h * field.force(interval.time(time_q), q)
                time_p += kick
        return Step(Carry((field.join(q, p),)))


REVNET = Symplectic((1.0,), (1.0,), 1)
"""The block of RevNet, which is the symplectic Euler method: drift, then kick."""

VERLET = Symplectic((0.0, 1.0), (0.5, 0.5), 2)
"""The Stoermer-Verlet method: half a kick, a drift, half a kick. Its positions satisfy the two-step recursion
q_{n+1} - 2 q_n + q_{n-1} = h^2 q''(q_n) where V(p) = p."""

LEAPFROG = Symplectic((0.5, 0.5), (1.0, 0.0), 2)
"""The position form of the leapfrog: half a drift, a kick, half a drift; one evaluation of the force per step."""


class Halved(Protocol):
    """A field whose states (batch, *shape) consist of two halves."""

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]: ...

    def join(self, q: Tensor, p: Tensor) -> Tensor: ...


class Separable(Halved, Protocol):
    """A field in which the derivative of each half depends only on the other: q' = velocity(t, p), p' = force(t, q)."""

    def velocity(self, t: Number, p: Tensor) -> Tensor: ...

    def force(self, t: Number, q: Tensor) -> Tensor: ...


def as_halved(field: object) -> Halved:
    """The field; raises if its states do not have two halves."""
    if not _is_halved(field):
        raise ValueError(f"the scheme needs states of two halves, {_EXAMPLES}, got {type(field).__name__}.")
    return field


def as_separable(field: object) -> Separable:
    """The field; raises if it is not `Separable`."""
    if not _is_separable(field):
        raise ValueError(
            f"the scheme needs a field of two halves of which each moves by the other alone, {_EXAMPLES}, "
            f"got {type(field).__name__}."
        )
    return field


# By getattr: since Python 3.12 isinstance with a protocol does not find the submodules of an nn.Module.
def _is_halved(field: object) -> TypeGuard[Halved]:
    return all(callable(getattr(field, name, None)) for name in ("split", "join"))


def _is_separable(field: object) -> TypeGuard[Separable]:
    return _is_halved(field) and all(callable(getattr(field, name, None)) for name in ("velocity", "force"))


_EXAMPLES = "such as rs.fields.Hamiltonian(...) or rs.fields.Partitioned(velocity, force)"
