"""Explicit schemes in which one half of the state moves while the other stands still: Verlet, leapfrog, RevNet."""

from dataclasses import dataclass

from resolvent.schemes.halves import as_separable
from resolvent.schemes.interval import Interval
from resolvent.schemes.linear_form import LinearForm, Rows, pair_form
from resolvent.schemes.order_conditions import tree_order
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.tableau import Row


@dataclass(frozen=True)
class Symplectic(Scheme):
    """Drifts q <- q + d_i h V(t, p) and kicks p <- p + k_i h K(t, q) in turn: explicit, reversible and, for a
    Hamiltonian field, symplectic.

    A half's own time is the sum of its moves so far, and V and K are read at the time of their argument. With one
    drift and one kick this is the reversible block of RevNet, q1 = q + V(p), p1 = p + K(q1).

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
        """A, b of q, A, b of p: stage i of q is past drift i, stage i of p is before it and past kick i-1."""
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
"""The block of RevNet, known as the symplectic Euler method: drift, then kick."""

VERLET = Symplectic((0.0, 1.0), (0.5, 0.5), 2)
"""The Stoermer-Verlet method: half a kick, a drift, half a kick. Its positions satisfy the two-step recursion
q_{n+1} - 2 q_n + q_{n-1} = h^2 q''(q_n) where V(p) = p."""

LEAPFROG = Symplectic((0.5, 0.5), (1.0, 0.0), 2)
"""The leapfrog in its position form: half a drift, a kick, half a drift; one evaluation of the force a step."""
