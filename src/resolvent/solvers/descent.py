"""The paper's descent methods on |w - b - tau F(w)|^2: gradient descent, conjugate gradients, L-BFGS."""

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from resolvent.equation.linearization import Linearization
from resolvent.equation.norms import dot, flat, length, per_sample, rms
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solver import State
from resolvent.solvers.history import divide, ring
from resolvent.solvers.line_search import LineSearch, search
from resolvent.solvers.nonlinear import NonlinearSolver

# The most trials on one line; then a sample searches along the steepest descent.
_MOST_TRIALS = 20


@dataclass(kw_only=True)
class DescentState(State):
    """`w` is the start of the current line, and `gradient` the gradient there."""

    gradient: Tensor
    direction: Tensor
    line: LineSearch
    changes_w: Tensor
    changes_g: Tensor


class Descent(NonlinearSolver):
    """Minimises phi(w) = |r(w)|^2 / 2, r = b + tau F(w) - w, along directions that subclasses choose.

    The gradient is -(I - tau F'(w))^T r: one evaluation and one vjp per step. A step of the loop is one trial of the
    line search; every sample has its own line and memory. A minimum of phi that is not a root ends as STALLED.
    """

    max_steps = 1000
    curvature: ClassVar[float]
    memory: int = 1

    @abstractmethod
    def direct(self, gradient: Tensor, before: DescentState, changes_w: Tensor, changes_g: Tensor) -> Tensor:
        """The search direction from a point with this gradient, after the line of the state `before`. The last changes
        of w and of the gradient are (batch, memory, n), oldest first, padded with zeros."""

    def steepest(self, gradient: Tensor) -> Tensor:
        """The first direction, and the fallback."""
        return -gradient

    def first_trial(self, before: DescentState, slope: Tensor) -> Tensor:
        """The first trial on a new line: the step that would change phi as much as the line before."""
        expected = divide(before.line.t * before.line.slope, slope)
        return torch.where(expected > 0, torch.minimum(expected, 10 * before.line.t), 1.0)

    def init(self, problem: NonlinearProblem, w: Tensor) -> DescentState:
        phi, gradient, norm, rounding = _objective(problem, w)
        empty = ring(self.memory, gradient)
        direction = self.steepest(gradient)
        line = LineSearch.start(phi, dot(gradient, direction), rounding, torch.ones_like(phi))
        return DescentState(
            w=w,
            norm=norm,
            gradient=gradient,
            direction=direction,
            line=line,
            changes_w=empty,
            changes_g=empty.clone(),
        )

    def step(self, problem: NonlinearProblem, state: DescentState, running: Tensor) -> DescentState:
        moved = state.w + per_sample(state.line.t, state.w) * state.direction
        trial = torch.where(per_sample(running, moved), moved, state.w)
        phi, gradient, norm, rounding = _objective(problem, trial)
        line, accepted = search(state.line, phi, dot(gradient, state.direction), self.curvature)
        accepted = accepted & running
        hopeless = running & ~accepted & (line.trials >= _MOST_TRIALS)

        moves = per_sample(accepted, trial)
        shifted = accepted[:, None, None]
        changes_w = torch.where(shifted, _shift(state.changes_w, trial - state.w), state.changes_w)
        changes_g = torch.where(shifted, _shift(state.changes_g, gradient - state.gradient), state.changes_g)
        gradient = torch.where(moves, gradient, state.gradient)
        phi = torch.where(accepted, phi, state.line.phi)
        rounding = torch.where(accepted, rounding, state.line.rounding)
        steepest = self.steepest(gradient)
        direction = torch.where(moves, self.direct(gradient, state, changes_w, changes_g), steepest)
        uphill = ~(dot(direction, gradient) < 0)
        direction = torch.where(per_sample(uphill, direction), steepest, direction)
        slope = dot(direction, gradient)
        next_line = LineSearch.start(phi, slope, rounding, self.first_trial(state, slope))
        turn = accepted | hopeless
        return DescentState(
            w=torch.where(moves, trial, state.w),
            norm=torch.where(accepted, norm, state.norm),
            gradient=gradient,
            direction=torch.where(per_sample(turn, direction), direction, state.direction),
            line=_choose(turn, next_line, line),
            changes_w=changes_w,
            changes_g=changes_g,
        )


@dataclass(frozen=True)
class GradientDescent(Descent):
    """Gradient descent with scaling and momentum: direction -Lambda grad phi + m (last direction), Wolfe conditions.

    The simplest of the paper's three methods, and the slowest: the number of steps grows with the square of the
    condition number of I - tau F'.

    Arguments:
        scaling: Lambda > 0, a number or a tensor that broadcasts to the shape of one sample.
        momentum: m, in [0, 1).

    Reference: Reshniak & Webster, table of descent methods.
    """

    scaling: float | Tensor = 1.0
    momentum: float = 0.0
    curvature = 0.9

    def __post_init__(self) -> None:
        if not bool((torch.as_tensor(self.scaling) > 0).all()):
            raise ValueError(f"scaling must be positive, got {self.scaling!r}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum!r}.")

    def direct(self, gradient: Tensor, before: DescentState, changes_w: Tensor, changes_g: Tensor) -> Tensor:
        return self.momentum * before.direction + self.steepest(gradient)

    def steepest(self, gradient: Tensor) -> Tensor:
        return -self.scaling * gradient


@dataclass(frozen=True)
class ConjugateGradient(Descent):
    """Nonlinear conjugate gradients (Polak and Ribiere, clipped at zero) with line minimisation.

    Reference: Reshniak & Webster, table of descent methods; Nocedal & Wright, Numerical optimization, chapter 5.
    """

    curvature = 0.1

    def direct(self, gradient: Tensor, before: DescentState, changes_w: Tensor, changes_g: Tensor) -> Tensor:
        change = dot(gradient, gradient - before.gradient)
        beta = divide(change, dot(before.gradient, before.gradient)).clamp(min=0)
        return per_sample(beta, gradient) * before.direction - gradient


@dataclass(frozen=True)
class LBFGS(Descent):
    """L-BFGS with the Wolfe conditions: the quasi-Newton method of the paper's experiments.

    It converges from far away and needs no contraction, but squares the condition number. `Auto` uses it as the last
    fallback.

    Arguments:
        memory: pairs of changes that form the approximate Hessian.

    Reference: Reshniak & Webster, table of descent methods; Nocedal & Wright, Numerical optimization, chapter 7.
    """

    memory: int = 10
    curvature = 0.9

    def __post_init__(self) -> None:
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ValueError(f"memory counts pairs of changes and must be 1 or more, got {self.memory!r}.")

    def first_trial(self, before: DescentState, slope: Tensor) -> Tensor:
        return torch.ones_like(slope)

    def direct(self, gradient: Tensor, before: DescentState, changes_w: Tensor, changes_g: Tensor) -> Tensor:
        curvatures = (changes_w * changes_g).sum(2)
        inverse = torch.where(curvatures > 0, divide(torch.ones_like(curvatures), curvatures), 0.0)
        q = flat(gradient)
        weights = []
        for s, y, rho in _pairs(changes_w, changes_g, inverse, newest_first=True):
            weights.append(rho * (s * q).sum(1))
            q = q - weights[-1][:, None] * y
        newest = changes_g[:, -1].square().sum(1)
        scale = torch.where(inverse[:, -1] > 0, divide(curvatures[:, -1], newest), 1.0)
        q = scale[:, None] * q
        for (s, y, rho), weight in zip(_pairs(changes_w, changes_g, inverse), reversed(weights), strict=True):
            q = q + (weight - rho * (y * q).sum(1))[:, None] * s
        return -q.reshape(gradient.shape)


def _objective(problem: NonlinearProblem, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """phi and its gradient at w, the root mean square of r, and the norm of the rounding error in r."""
    linearization = Linearization(problem, w)
    change = problem.tau * linearization.image
    r = problem.b + change - w
    rounding = torch.finfo(problem.precision).eps * (length(problem.b) + length(change) + length(w))
    return 0.5 * dot(r, r), -linearization.transposed_product(r), rms(r), rounding


def _shift(history: Tensor, vector: Tensor) -> Tensor:
    """The history without its oldest vector and with a new one."""
    return torch.cat([history[:, 1:], flat(vector)[:, None]], dim=1)


def _pairs(
    changes_w: Tensor, changes_g: Tensor, inverse: Tensor, newest_first: bool = False
) -> list[tuple[Tensor, Tensor, Tensor]]:
    pairs = [(changes_w[:, i], changes_g[:, i], inverse[:, i]) for i in range(inverse.shape[1])]
    return pairs[::-1] if newest_first else pairs


def _choose(mask: Tensor, new: LineSearch, old: LineSearch) -> LineSearch:
    return LineSearch(*(torch.where(mask, getattr(new, f.name), getattr(old, f.name)) for f in fields(LineSearch)))
