"""Linear multistep schemes, which use more than one earlier state: BDF and Adams-Moulton."""

from dataclasses import dataclass, field

import torch

from resolvent.equation.solution import Solution
from resolvent.schemes.interval import Interval
from resolvent.schemes.linear_form import LinearForm, as_complex, polynomial_order
from resolvent.schemes.runge_kutta import RungeKutta, combine
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.tableaux import GAUSS4, SDIRK2, SDIRK3


@dataclass(frozen=True)
class Multistep(Scheme):
    """The linear multistep method

        y_{n+1} = sum_j alpha_j y_{n-j} + h (beta_0 F_{n+1} + sum_j beta_{j+1} F_{n-j}),      j = 0, 1, ...

    with one resolvent per step and at most one evaluation, F_n. The first steps are made by a one-step scheme whose
    order is at most one lower, so that the start does not reduce the order.

    Arguments:
        alpha: weights of the states, the latest first.
        beta: weights of the slopes, that of the new state first.
        order: of convergence.
        start: the scheme for the first steps.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, chapter III.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    order: int = 1
    start: Scheme = field(default_factory=lambda: RungeKutta(SDIRK3))

    def __post_init__(self) -> None:
        if not self.alpha or not self.beta:
            raise ValueError(f"alpha and beta must not be empty, got alpha={self.alpha!r} and beta={self.beta!r}.")
        if abs(sum(self.alpha) - 1) > 1e-12:
            raise ValueError(f"the weights alpha must sum to 1 for the method to converge, got {sum(self.alpha)}.")
        if self.start.order < self.order - 1:
            raise ValueError(
                f"a start of order {self.start.order} reduces the order of a method of order {self.order}: take one of "
                f"order {self.order - 1} or more."
            )

    @property
    def implicit(self) -> bool:
        return self.beta[0] != 0 or self.start.implicit

    @property
    def inverse(self) -> Scheme:
        raise ValueError(
            "a multistep scheme has no inverse step that is stable, and cannot be reversed: take memory='checkpoint', "
            "or a one-step scheme."
        )

    @property
    def linear_form(self) -> LinearForm:
        # The new state is a stage, and so is each old one, because its slope is needed.
        k = max(len(self.alpha), len(self.beta) - 1)
        alpha = as_complex((*self.alpha, *[0.0] * (k - len(self.alpha))))
        beta = as_complex((*self.beta, *[0.0] * (k + 1 - len(self.beta))))
        A, U = as_complex(torch.zeros(k + 1, k + 1)), torch.cat((alpha[None], as_complex(torch.eye(k))))
        B, V = as_complex(torch.zeros(k, k + 1)), torch.diag(as_complex(torch.ones(k - 1)), -1)
        A[0], B[0], V[0] = beta, beta, alpha
        return LinearForm(A, U, B, V)

    @property
    def stage_norm(self) -> float:
        return abs(self.beta[0])

    @property
    def one_step(self) -> bool:
        return False

    def order_by_conditions(self) -> int:
        return polynomial_order(self.alpha, self.beta)

    def step(self, interval: Interval, carry: Carry) -> Step:
        states, slopes = carry
        if len(self.beta) > 1:
            slopes = (interval.evaluate(0.0, states[0]), *slopes)
        solutions: tuple[Solution, ...] = ()
        if len(states) < len(self.alpha) or len(slopes) < len(self.beta) - 1:
            first = self.start.step(interval, Carry(states[:1]))
            y, solutions = first.state, first.solutions
        else:
            y = combine(self.alpha[0] * states[0], self.alpha[1:], states[1:])
            y = combine(y, [interval.step * beta for beta in self.beta[1:]], slopes)
            if self.beta[0] != 0:
                solutions = (interval.resolve(1.0, y, self.beta[0], interval.predict(1.0)),)
                y = solutions[0].value
        # The next step evaluates the slope at y and adds it to these.
        return Step(Carry((y, *states)[: len(self.alpha)], slopes[: max(len(self.beta) - 2, 0)]), solutions)


BDF2 = Multistep(alpha=(4 / 3, -1 / 3), beta=(2 / 3,), order=2, start=RungeKutta(SDIRK2))
"""Backward differentiation of order 2, L-stable."""

BDF3 = Multistep(alpha=(18 / 11, -9 / 11, 2 / 11), beta=(6 / 11,), order=3, start=RungeKutta(SDIRK3))
"""Backward differentiation of order 3, stable in a sector of 86 degrees about the negative axis."""

ADAMS_MOULTON3 = Multistep(alpha=(1.0,), beta=(5 / 12, 8 / 12, -1 / 12), order=3, start=RungeKutta(SDIRK3))
"""Adams-Moulton of order 3, with two slopes from the past; stable for -6 <= z <= 0 on the real axis."""

ADAMS_MOULTON4 = Multistep(alpha=(1.0,), beta=(9 / 24, 19 / 24, -5 / 24, 1 / 24), order=4, start=RungeKutta(GAUSS4))
"""Adams-Moulton of order 4, with three slopes from the past; stable for -3 <= z <= 0 on the real axis."""
