"""Newton's method for a group of theta layers as one function with no decisions in it, for a compiler to take whole."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.core.linearization import coupled_jacobian
from resolvent.core.problem import per_sample, rms
from resolvent.schemes.interval import Number
from resolvent.solvers.newton import SUFFICIENT

EVALUATIONS = 3
"""Of the field, besides those of the steps: two of a fixed point, and one where Newton's method begins."""


class Group(NamedTuple):
    """What is solved.

    Attributes:
        field: F(t, y), of single rows.
        times: (batch * rows,), of the rows of all samples; a number where the field does not depend on time.
        h: the step.
        theta: of the layers.
        rtol, atol: for the residual of a sample, see `Stopping`.
        state_rtol, state_atol: for the error of its states.
    """

    field: Any
    times: Number
    h: Number
    theta: Number
    rtol: float
    atol: float
    state_rtol: float
    state_atol: float


class Attempt(NamedTuple):
    """What came of it.

    Attributes:
        states: (batch, rows, n), at the ends of the layers, differentiable.
        stages: (batch, rows, n), the solution.
        residual, steps: (batch,).
        good: of no dimension, whether all samples converged, with states as accurate as asked for.
    """

    states: Tensor
    stages: Tensor
    residual: Tensor
    steps: Tensor
    good: Tensor


class _Point(NamedTuple):
    """A point, and the equation there.

    Attributes:
        w: (batch, rows, n).
        slopes: F there, alike.
        blocks: (batch, rows, n, n), the Jacobian of F in each row.
        matrix: (batch, rows n, rows n), I - h M F'.
        r: the defect.
        norm: (batch,), its size.
    """

    w: Tensor
    slopes: Tensor
    blocks: Tensor
    matrix: Tensor
    r: Tensor
    norm: Tensor


def attempt(group: Group, x: Tensor, rows: int, steps: int) -> Attempt:
    """Makes `steps` steps of Newton's method for all samples; those that have converged do not move any more.

    The equation is that of `Theta.steps`, w = x + h M F(w), M lower triangular with theta on its diagonal. Once it is
    solved, its derivatives are attached as those of one more step with a constant matrix,

        d = (I - h M F'(w))^{-1} (x + h M F(w) - w),      y = x + h L (F(w) + F'(w) d),

    L with ones on its diagonal: F is evaluated with a graph at w and nowhere else.

    Arguments:
        group: what is solved.
        x: (batch, n), the state at the start.
        rows: number of layers.
        steps: how many.
    """
    lower = torch.ones(rows, rows, dtype=x.dtype, device=x.device).tril()
    mix = lower - (1 - group.theta) * torch.eye(rows, dtype=x.dtype, device=x.device)
    b = x.unsqueeze(1).expand(-1, rows, -1)
    with torch.no_grad():
        point, count, converged = _solve(group, b, mix, steps)
    slopes = point.slopes
    if torch.is_grad_enabled():
        slopes = _slopes(group, point.w)
        r = b + group.h * (mix @ slopes) - point.w
        d = torch.linalg.solve_ex(point.matrix, r.flatten(1)).result.reshape(r.shape)
        slopes = slopes + (point.blocks @ d.unsqueeze(-1)).squeeze(-1)
    states = b + group.h * (lower @ slopes)
    return Attempt(states, point.w, point.norm, count, converged.all())


def _solve(group: Group, b: Tensor, mix: Tensor, steps: int) -> tuple[_Point, Tensor, Tensor]:
    """The last point, and for each sample the number of steps, and whether it has converged."""
    # Two steps of the fixed point, where it contracts, cost less than the step of Newton's method that they save.
    first = b + group.h * (mix @ _slopes(group, b))
    second = b + group.h * (mix @ _slopes(group, first))
    contracts = rms(second - first) < rms(first - b)
    point = _at(group, torch.where(per_sample(contracts, b), second, b), b, mix)
    scale = rms(b)
    length, count = torch.ones_like(scale), torch.zeros_like(scale, dtype=torch.int32)
    running = ~_converged(group, point, scale)
    for _ in range(steps):
        d, info = torch.linalg.solve_ex(point.matrix, point.r.flatten(1))
        trial = _at(group, point.w + per_sample(length, b) * d.reshape(b.shape), b, mix)
        moves = running & (info == 0) & (trial.norm < (1 - SUFFICIENT * length) * point.norm)
        point = _Point(*(torch.where(per_sample(moves, new), new, old) for new, old in zip(trial, point, strict=True)))
        length = torch.where(moves, 1.0, 0.5 * length)
        count = count + running
        running = running & ~_converged(group, point, scale)
    return point, count, ~running


def _converged(group: Group, point: _Point, scale: Tensor) -> Tensor:
    own = rms(point.w)
    size = torch.maximum(scale, own)
    # The error of the stages, times h F', is that of the states.
    error = point.matrix.abs().amax(dim=(1, 2)) * point.norm
    accurate = error <= group.state_atol + group.state_rtol * own
    return (point.norm <= group.atol + group.rtol * size) & accurate & size.isfinite()


def _slopes(group: Group, w: Tensor) -> Tensor:
    slopes: Tensor = group.field(group.times, w.flatten(0, 1)).reshape(w.shape)
    return slopes


def _at(group: Group, w: Tensor, b: Tensor, mix: Tensor) -> _Point:
    slopes, blocks = group.field.with_jacobian(group.times, w.flatten(0, 1))
    slopes = slopes.reshape(w.shape)
    jacobian = coupled_jacobian(mix, blocks)
    matrix = torch.eye(jacobian.shape[-1], dtype=w.dtype, device=w.device) - group.h * jacobian
    r = b + group.h * (mix @ slopes) - w
    return _Point(w, slopes, blocks.reshape(*w.shape, w.shape[-1]), matrix, r, rms(r))
