"""Newton's method for a group of theta layers as one function without data-dependent decisions, for `torch.compile`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from resolvent.blocks.strategies.group_tolerance import LayerTest
from resolvent.blocks.strategies.layer_recurrence import Linearized, inverses, newton_direction, regular
from resolvent.equation.mixing import LayerMixing
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.solution import Status
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
        state_rtol, state_atol: for a single layer, and for the error of its states.
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
        status, solver_index: (batch,), those of `Solution`.
        good: 0-d, whether all samples converged and, if derivatives are needed, their matrices are regular.
    """

    states: Tensor
    stages: Tensor
    residual: Tensor
    steps: Tensor
    status: Tensor
    solver_index: Tensor
    good: Tensor


class _Point(NamedTuple):
    """An iterate, with the equation evaluated there.

    Attributes:
        w: (batch, rows, n).
        slopes: (batch, rows, n), F of each row.
        blocks: (batch, rows, n, n), h times the Jacobian of F in each row.
        r: the defect.
        norm: (batch,), its size.
    """

    w: Tensor
    slopes: Tensor
    blocks: Tensor
    r: Tensor
    norm: Tensor


class _Progress(NamedTuple):
    """Per sample, (batch,).

    Attributes:
        length: of the next step, as a fraction of Newton's.
        steps: how many it has made.
        running: whether it has not converged.
    """

    length: Tensor
    steps: Tensor
    running: Tensor


Iterate = tuple[_Point, _Progress]
NewtonStep = Callable[[Group, Tensor, _Point, _Progress], Iterate]


def solve_group(group: Group, x: Tensor, rows: int, steps: int, step: NewtonStep) -> GroupResult:
    """Makes `steps` steps of Newton's method for all samples; converged samples do not move.

    The equation is that of `AllTogether`, w = x + h M F(w), M lower triangular with theta on its diagonal. For the
    derivative, F is evaluated once more, with a graph, in the backward pass.

    Arguments:
        group: the equation.
        x: (batch, n), the state at the start.
        rows: number of layers.
        steps: number of steps.
        step: `newton_step`, or a region of the graph that is compiled once for all steps.
    """
    b = x.detach().unsqueeze(1).expand(-1, rows, -1)
    with torch.no_grad():
        point, progress = _start(group, b)
        for _ in range(steps):
            point, progress = step(group, b, point, progress)
        states = point.w if group.theta == 1 else b + group.h * _sums(point.slopes, 1.0)
        good = (~progress.running).all()
    if torch.is_grad_enabled():
        matrices = _matrices(group, point)
        found = inverses(matrices)
        good = good & regular(matrices, found)
        # Its value is not needed, and its graph is made where it is used: no activations are kept.
        slopes = checkpoint(_slopes, group, point.w, use_reentrant=False, preserve_rng_state=False)
        states = Linearized.apply(states, x, group.h * slopes, found, group.theta)
    status = torch.full_like(progress.steps, Status.CONVERGED.value)
    return GroupResult(states, point.w, point.norm, progress.steps, status, torch.zeros_like(status), good)


def newton_step(group: Group, b: Tensor, point: _Point, progress: _Progress) -> Iterate:
    """One step of the samples that have not converged."""
    length, made, running = progress
    d = newton_direction(inverses(_matrices(group, point)), point.r, group.theta)
    trial = _at(group, point.w + per_sample(length, b) * d, b)
    moves = running & (trial.norm < (1 - SUFFICIENT * length) * point.norm)
    point = _Point(*(torch.where(per_sample(moves, new), new, old) for new, old in zip(trial, point, strict=True)))
    length = torch.where(moves, 1.0, 0.5 * length)
    return point, _Progress(length, made + running, running & ~_converged(group, point, b))


def _start(group: Group, b: Tensor) -> Iterate:
    # Two fixed-point steps, where they contract, cost less than the Newton step they save.
    first = b + group.h * _sums(_slopes(group, b), group.theta)
    second = b + group.h * _sums(_slopes(group, first), group.theta)
    contracts = rms(second - first) < rms(first - b)
    point = _at(group, torch.where(per_sample(contracts, b), second, b), b)
    count = torch.zeros_like(point.norm, dtype=torch.int32)
    return point, _Progress(torch.ones_like(point.norm), count, ~_converged(group, point, b))


def _converged(group: Group, point: _Point, b: Tensor) -> Tensor:
    own = rms(point.w)
    size = torch.maximum(rms(b), own)
    converged = (point.norm <= group.atol + group.rtol * size) & size.isfinite()
    if group.theta == 1:
        asked = LayerTest(group.state_rtol, group.state_atol, theta=1.0)
        return asked.each(converged, point.r, b, point.w)
    # The error of the states is that of the stages times h F'. This is the largest entry of I - h M F'.
    largest = _matrices(group, point).abs().amax(dim=(1, 2, 3))
    if point.w.shape[1] > 1:
        largest = torch.maximum(largest, point.blocks[:, :-1].abs().amax(dim=(1, 2, 3)))
    return converged & (largest * point.norm <= group.state_atol + group.state_rtol * own)


def _slopes(group: Group, w: Tensor) -> Tensor:
    slopes: Tensor = group.field(group.times, w.flatten(0, 1)).reshape(w.shape)
    return slopes


def _sums(slopes: Tensor, theta: float) -> Tensor:
    """M F: the sums of the slopes of all earlier layers, and theta times those of the layer itself."""
    mix = LayerMixing(theta).matrix(slopes.shape[1], slopes)
    # As a sum, the compiler fuses it with its neighbours.
    return (mix[:, :, None] * slopes.unsqueeze(1)).sum(2)


def _matrices(group: Group, point: _Point) -> Tensor:
    """(batch, rows, n, n), I - theta h F' of each layer."""
    n = point.w.shape[2]
    return torch.eye(n, dtype=point.w.dtype, device=point.w.device) - group.theta * point.blocks


def _at(group: Group, w: Tensor, b: Tensor) -> _Point:
    slopes, blocks = group.field.value_and_jacobian(group.times, w.flatten(0, 1))
    # Of one layout, so that all steps are the same to the compiler.
    slopes, blocks = slopes.reshape(w.shape).contiguous(), blocks.reshape(*w.shape, w.shape[2]).contiguous()
    r = b + group.h * _sums(slopes, group.theta) - w
    return _Point(w, slopes, group.h * blocks, r, rms(r))
