"""Newton's method for a group of theta layers as one function with no decisions in it, for a compiler to take whole."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.blocks.strategies.all_together import state_weights
from resolvent.equation.matrix import BlockTriangular
from resolvent.equation.norms import per_sample, rms
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
    """

    field: Any
    times: Number
    h: Number
    theta: float
    rtol: float
    atol: float


class GroupResult(NamedTuple):
    """What was found.

    Attributes:
        states: (batch, rows, n), at the ends of the layers, differentiable.
        stages: (batch, rows, n), the solution.
        residual, steps: (batch,).
        good: 0-d, whether all samples converged, with a matrix that is regular where derivatives are wanted.
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
        matrix: (batch, rows n, rows n), I - h M F'.
        r: the defect.
        norm: (batch,), its size.
    """

    w: Tensor
    matrix: Tensor
    r: Tensor
    norm: Tensor


def solve_group(group: Group, x: Tensor, rows: int, steps: int) -> GroupResult:
    """Makes `steps` steps of Newton's method for all samples; those that have converged do not move any more.

    The equation is that of `AllTogether`, w = x + h M F(w), M lower triangular with theta on its diagonal. Once it is
    solved, its derivative is attached as that of one more step with a constant matrix,

        d = (I - h M F'(w))^{-1} (x + h M F(w) - w),

    whose value is left out: F is evaluated with a graph at w and nowhere else.

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
    stages, good = point.w, converged.all()
    if torch.is_grad_enabled():
        r = b + group.h * (mix @ _slopes(group, point.w)) - point.w
        d, info = torch.linalg.solve_ex(point.matrix, r.flatten(1))
        stages = point.w + (d - d.detach()).reshape(r.shape)
        good = good & (info == 0).all() & d.isfinite().all()
    if group.theta == 1:
        states = stages
    else:
        weights, powers = state_weights(group.theta, rows, x)
        states = weights @ stages + powers[1:, None] * x.unsqueeze(1)
    return GroupResult(states, point.w, point.norm, count, good)


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
    size = torch.maximum(scale, rms(point.w))
    return (point.norm <= group.atol + group.rtol * size) & size.isfinite()


def _slopes(group: Group, w: Tensor) -> Tensor:
    slopes: Tensor = group.field(group.times, w.flatten(0, 1)).reshape(w.shape)
    return slopes


def _at(group: Group, w: Tensor, b: Tensor, mix: Tensor) -> _Point:
    slopes, blocks = group.field.value_and_jacobian(group.times, w.flatten(0, 1))
    rows, n = w.shape[1], w.shape[2]
    matrix = BlockTriangular(mix, blocks.reshape(-1, rows, n, n), group.h).dense()
    r = b + group.h * (mix @ slopes.reshape(w.shape)) - w
    return _Point(w, matrix, r, rms(r))
