"""Newton's method for a group of theta layers as one function without data-dependent decisions, for `torch.compile`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.equation.matrix import BlockTriangular
from resolvent.equation.norms import per_sample, rms
from resolvent.schemes.interval import Number
from resolvent.solvers.newton import SUFFICIENT

EVALUATIONS = 3
"""Evaluations of the field besides those of the steps: two fixed-point steps, and the start of Newton's method."""


class Group(NamedTuple):
    """The equation of a group of layers.

    Attributes:
        field: F(t, y), of single rows.
        times: (batch * rows,), of the rows of all samples; a number if the field does not depend on time.
        h: the step.
        theta: of the layers.
        rtol, atol: for the residual of a sample, see `Stopping`.
        state_rtol, state_atol: for the error of its states.
    """

    field: Any
    times: Number
    h: Number
    theta: float
    rtol: float
    atol: float
    state_rtol: float
    state_atol: float


class GroupResult(NamedTuple):
    """The result of `solve_group`.

    Attributes:
        states: (batch, rows, n), at the ends of the layers, differentiable.
        stages: (batch, rows, n), the solution.
        residual, steps: (batch,).
        good: 0-d, whether all samples converged and, if derivatives are needed, their matrices are regular.
    """

    states: Tensor
    stages: Tensor
    residual: Tensor
    steps: Tensor
    good: Tensor


class _Point(NamedTuple):
    """An iterate, with the equation evaluated there.

    Attributes:
        w: (batch, rows, n).
        blocks: (batch, rows, n, n), the Jacobian of F in each row.
        matrix: (batch, rows n, rows n), I - h M F'.
        r: the defect.
        norm: (batch,), its size.
    """

    w: Tensor
    blocks: Tensor
    matrix: Tensor
    r: Tensor
    norm: Tensor


def solve_group(group: Group, x: Tensor, rows: int, steps: int) -> GroupResult:
    """Makes `steps` steps of Newton's method for all samples; converged samples do not move.

    The equation is that of `AllTogether`, w = x + h M F(w), M lower triangular with theta on its diagonal. The
    derivative of the solution is that of one more step with a constant matrix,

        d = (I - h M F'(w))^{-1} (x + h M F(w) - w),

    whose value is not added: F is evaluated with a graph only at w.

    Arguments:
        group: the equation.
        x: (batch, n), the state at the start.
        rows: number of layers.
        steps: number of steps.
    """
    lower = torch.ones(rows, rows, dtype=x.dtype, device=x.device).tril()
    mix = lower - (1 - group.theta) * torch.eye(rows, dtype=x.dtype, device=x.device)
    b = x.unsqueeze(1).expand(-1, rows, -1)
    with torch.no_grad():
        point, count, converged = _solve(group, b, mix, steps)
    slopes, good = _slopes(group, point.w), converged.all()
    change = torch.zeros_like(point.w)
    if torch.is_grad_enabled():
        r = b + group.h * (mix @ slopes) - point.w
        d, info = torch.linalg.solve_ex(point.matrix, r.flatten(1))
        change = (d - d.detach()).reshape(r.shape)
        good = good & (info == 0).all() & d.isfinite().all()
    if group.theta == 1:
        states = point.w + change
    else:
        states = b + group.h * (lower @ (slopes + (point.blocks @ change.unsqueeze(-1)).squeeze(-1)))
    return GroupResult(states, point.w, point.norm, count, good)


def _solve(group: Group, b: Tensor, mix: Tensor, steps: int) -> tuple[_Point, Tensor, Tensor]:
    """The last point, and per sample the number of steps and whether it has converged."""
    # Two fixed-point steps, where they contract, cost less than the Newton step they save.
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
    converged = (point.norm <= group.atol + group.rtol * size) & size.isfinite()
    if group.theta == 1:
        return converged
    # The error of the states is that of the stages times h F'.
    error = point.matrix.abs().amax(dim=(1, 2)) * point.norm
    return converged & (error <= group.state_atol + group.state_rtol * own)


def _slopes(group: Group, w: Tensor) -> Tensor:
    slopes: Tensor = group.field(group.times, w.flatten(0, 1)).reshape(w.shape)
    return slopes


def _at(group: Group, w: Tensor, b: Tensor, mix: Tensor) -> _Point:
    slopes, blocks = group.field.value_and_jacobian(group.times, w.flatten(0, 1))
    rows, n = w.shape[1], w.shape[2]
    blocks = blocks.reshape(-1, rows, n, n)
    matrix = BlockTriangular(mix, blocks, group.h).dense()
    r = b + group.h * (mix @ slopes.reshape(w.shape)) - w
    return _Point(w, blocks, matrix, r, rms(r))
