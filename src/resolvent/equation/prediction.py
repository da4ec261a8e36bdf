"""Predicts the last step of a solve. Only there a graph has to be recorded, or gradients of weights to be computed."""

import math

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

    def problem_at(self, step: int, before: Tensor, norm: Tensor, tolerance: Tensor) -> Problem:
        """The problem for the evaluation of a step, from the last two residuals and the tolerance, (batch,) each."""
        if not self._waits or step == self._known:
            return self._problem
        if step < self._next or self._known is not None:
            return self.plain
        linear = self._problem.linear
        left, margin = steps_left(before, norm, tolerance), MARGIN_IF_LINEAR if linear else _MARGIN
        if left <= margin:
            # Once recorded, graphs go on to be. Gradients that come too early are predicted anew.
            self._waits, self._next = linear, step + 1
            return self._problem
        # Rates often improve, so the next prediction comes early. The first residual of a nonlinear problem, beside b,
        # says little about its rate.
        soon = left == math.inf or (step == 1 and not linear)
        self._next = step + (1 if soon else max(1, math.floor(left - margin)))
        return self.plain


def steps_left(before: Tensor, norm: Tensor, tolerance: Tensor) -> float:
    """How many more steps it takes until all samples are within the tolerance, if all go on as in the last one, from
    residuals `before` to `norm`. Infinite if they do not contract. Waits for the device."""
    return steps_left_by(*(torch.stack([before, norm]) / tolerance).amax(1).tolist())


def steps_left_by(then: float, now: float) -> float:
    """The same, from the largest residual before and after the last step, in units of the tolerance."""
    if now <= 1:
        return 0.0
    return math.log(now) / math.log(then / now) if now < then else math.inf
