"""Predicts the last step of a solve. Only there a graph has to be recorded, or gradients of weights to be computed."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.equation.problem import Problem

# A graph costs little to record, and a whole evaluation if it is missing: it is recorded when at most this many more
# steps are expected. Gradients of weights cost as much as the product they come with, so they wait for the last step.
_MARGIN, MARGIN_IF_LINEAR = 2.2, 1.05


class PredictedLast:
    """Chooses between a problem and its `without_graph`, step by step.

    The choice changes no result: what a wrong one has missed is computed after the solve.

    Arguments:
        problem: the problem to solve.
        first: the first step that may be predicted to be the last.
        known: the last step, if it is known.

    Attributes:
        plain: the problem of all steps but the last.
    """

    def __init__(self, problem: Problem, first: int = 1, known: int | None = None) -> None:
        self.plain = problem.without_graph()
        self._problem, self._known = problem, known
        self._waits = problem is not self.plain
        self._next = first  # The step to predict at.

    def problem_at(self, step: int, residuals: Callable[[], tuple[float, float]]) -> Problem:
        """The problem for the evaluation of a step.

        Arguments:
            step: its number.
            residuals: the largest residuals before the last step and after it, in units of the tolerance, see
                `in_units`. Called only if they are needed.
        """
        if not self._waits or step == self._known:
            return self._problem
        if step < self._next or self._known is not None:
            return self.plain
        linear = self._problem.linear
        left, margin = steps_left(*residuals()), MARGIN_IF_LINEAR if linear else _MARGIN
        if left <= margin:
            # Once recorded, graphs go on to be. Gradients that come too early are predicted anew.
            self._waits, self._next = linear, step + 1
            return self._problem
        # Rates often improve, so the next prediction comes early. The first residual of a nonlinear problem, beside b,
        # says little about its rate.
        soon = left == math.inf or (step == 1 and not linear)
        self._next = step + (1 if soon else max(1, math.floor(left - margin)))
        return self.plain


def in_units(before: Tensor, norm: Tensor, tolerance: Tensor) -> tuple[float, float]:
    """The largest residuals before and after a step, from those of all samples and their tolerance, (batch,) each.
    Waits for the device."""
    then, now = (torch.stack([before, norm]) / tolerance).amax(1).tolist()
    return then, now


def steps_left(then: float, now: float) -> float:
    """How many more steps it takes until all samples are within the tolerance, if all go on as in the last one: the
    largest residual before and after it, in units of the tolerance. Infinite if it did not fall."""
    if now <= 1:
        return 0.0
    return math.log(now) / math.log(then / now) if now < then else math.inf
