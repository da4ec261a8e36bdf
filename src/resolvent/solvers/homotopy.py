"""Continuation in tau along the branch of solutions, around its folds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.matrix import Dense
from resolvent.equation.norms import flat, per_sample, rms
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solver import State
from resolvent.equation.torch_func import all_true
from resolvent.solvers.nonlinear import NonlinearSolver

# The arc length of the first step and of the longest one; the whole way has at least the length 1.
_FIRST, _LONGEST = 0.1, 0.5
# The factors of the step after success and failure.
_GROWTH, _SHRINKAGE = 1.5, 0.25
# The most corrections per step, and the residual, relative to the scale of the unknowns, at which one is enough.
_CORRECTIONS, _ON_BRANCH = 4, 1e-3
# The least cosine of the angle between two tangents: after a sharper turn the step was too long, and may have ended on
# another branch, which need not lead to s = 1.
_STRAIGHT = 0.9


@dataclass(kw_only=True)
class HomotopyState(State):
    """A point of the branch. A tangent has one entry for each unknown, divided by their scale, and one for the part."""

    shift: Tensor
    part: Tensor
    tangent: Tensor
    length: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Homotopy(NonlinearSolver):
    """Follows the solutions of w = b + s tau F(w) from w = b at s = 0 to s = 1, by arc length.

    The branch is a curve in the space of w and s. Where it turns back, at a fold, s falls for a while; methods that
    raise s step by step end there. If F is bounded, almost every b has a branch that reaches s = 1. Every step predicts
    along the tangent and corrects by Newton's method in the plane across it; each takes the matrices of all samples.
    The first guess is not used.

    Reference: Allgower & Georg, Introduction to numerical continuation methods, 2003.
    """

    max_steps = 150
    patience = 150  # The residual of the whole equation is large up to the end of the branch.

    def init(self, problem: NonlinearProblem, w: Tensor) -> HomotopyState:
        start, (shift, matrix) = problem.b, _shift_and_matrix(problem, problem.b)
        scale = torch.maximum(rms(start), rms(shift))
        scale = torch.where(scale > 0, scale, 1.0)
        tangent = torch.cat([flat(shift) / _unit(scale, start), torch.ones_like(scale)[:, None]], dim=1)
        return HomotopyState(
            w=start,
            norm=rms(shift),
            matrix=matrix,
            shift=shift,
            part=torch.zeros_like(scale),
            tangent=tangent / torch.linalg.vector_norm(tangent, dim=1, keepdim=True),
            length=torch.full_like(scale, _FIRST),
            scale=scale,
        )

    def step(self, problem: NonlinearProblem, state: HomotopyState, running: Tensor) -> HomotopyState:
        unit = _unit(state.scale, state.w)
        rise = state.tangent[:, -1]
        arrived = state.part >= 1
        last = arrived | (state.part + state.length * rise >= 1)
        arc = torch.where(last, (1 - state.part) / rise, state.length)
        across = torch.where(last[:, None], _upwards(state.tangent), state.tangent)
        point = torch.cat([flat(state.w) / unit, state.part[:, None]], dim=1) + arc[:, None] * state.tangent
        point = torch.where(arrived[:, None], self._newton(problem, state, unit), point)
        point = torch.cat([point[:, :-1], torch.where(last, 1.0, point[:, -1])[:, None]], dim=1)
        tangent = state.tangent
        for _ in range(_CORRECTIONS + 1):
            w, s = (point[:, :-1] * unit).reshape(state.w.shape), point[:, -1]
            shift, matrix = _shift_and_matrix(problem, w)
            r = problem.b + per_sample(s, shift) * shift - w
            bordered = _bordered(matrix, flat(shift) / unit, s, across)
            # The first right-hand side gives the correction, the second one the tangent.
            side = torch.cat([flat(r) / unit, torch.zeros_like(s)[:, None]], dim=1)
            found, info = torch.linalg.solve_ex(bordered, torch.stack([side, _upwards(side)], dim=2))
            close = rms(r) <= _ON_BRANCH * state.scale
            tangent = found[:, :, 1]
            if all_true(close | ~running):
                break
            point = torch.where((close | (info > 0))[:, None], point, point + found[:, :, 0])
        tangent = tangent / torch.linalg.vector_norm(tangent, dim=1, keepdim=True)
        # At s = 1 the tangent is not needed any more.
        straight = last | ((tangent * state.tangent).sum(1) >= _STRAIGHT)
        good = running & close & straight & point.isfinite().all(1)
        defect = problem.b + shift - w
        return HomotopyState(
            w=torch.where(per_sample(good, w), w, state.w),
            norm=torch.where(good, rms(defect), state.norm),
            matrix=matrix.where(good, state.matrix) if state.matrix is not None else matrix,
            shift=torch.where(per_sample(good, shift), shift, state.shift),
            part=torch.where(good, s, state.part),
            tangent=torch.where((good & ~last)[:, None], tangent, state.tangent),
            length=torch.where(good, (state.length * _GROWTH).clamp(max=_LONGEST), state.length * _SHRINKAGE),
            scale=state.scale,
        )

    def _newton(self, problem: NonlinearProblem, state: HomotopyState, unit: Tensor) -> Tensor:
        """The points after a step of Newton's method for the whole equation."""
        assert state.matrix is not None
        d, usable = state.matrix.solve(problem.b + state.shift - state.w)
        w = torch.where(per_sample(usable, d), state.w + d, state.w)
        return torch.cat([flat(w) / unit, torch.ones_like(state.part)[:, None]], dim=1)


def _shift_and_matrix(problem: NonlinearProblem, w: Tensor) -> tuple[Tensor, Dense]:
    """tau F(w), and I - tau F'(w)."""
    image, matrix = evaluate_with_matrix(problem, w)
    return problem.step_of(image) - problem.b, Dense(matrix.dense())


def _bordered(matrix: Dense, shift: Tensor, s: Tensor, across: Tensor) -> Tensor:
    """The matrix (batch, n + 1, n + 1) of a correction: the derivatives of the residual, and the plane `across`."""
    s = s[:, None, None]
    identity = torch.eye(shift.shape[1], dtype=shift.dtype, device=shift.device)
    rows = torch.cat([(1 - s) * identity + s * matrix.entries, -shift[:, :, None]], dim=2)
    return torch.cat([rows, across[:, None]], dim=1)


def _upwards(tangent: Tensor) -> Tensor:
    """The direction of s."""
    return torch.cat([torch.zeros_like(tangent[:, :-1]), torch.ones_like(tangent[:, -1:])], dim=1)


def _unit(scale: Tensor, w: Tensor) -> Tensor:
    """What the unknowns are divided by, (batch, 1): a change of all of them by their scale has the length 1."""
    return scale[:, None] * w[0].numel() ** 0.5
