"""Newton's method for a group of theta layers as one function without data-dependent decisions, for `torch.compile`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from resolvent.blocks.strategies.group_equation import Group, Solved, layer_sums, solved
from resolvent.blocks.strategies.group_tolerance import LayerTest
from resolvent.blocks.strategies.layer_recurrence import Linearized, inverses, newton_direction, regular
from resolvent.equation.norms import per_sample, rms
from resolvent.solvers.newton import SUFFICIENT

EVALUATIONS = 3
"""Evaluations of the field besides those of the steps: two fixed-point steps, and the start of Newton's method."""


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


def solve_group(group: Group, x: Tensor, rows: int, steps: int, step: NewtonStep) -> tuple[Tensor, Solved]:
    """Makes `steps` steps of Newton's method for all samples; converged samples do not move.

    Returns the differentiable states at the ends of the layers, (batch, rows, n), and how the solve went. It is good
    if all samples converged and, where derivatives are needed, their matrices are regular.

    For the derivative, F is evaluated once more, with a graph, in the backward pass.

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
        states = point.w if group.theta == 1 else b + group.h * layer_sums(point.slopes, 1.0)
        good = (~progress.running).all()
    if torch.is_grad_enabled():
        matrices = _matrices(group, point)
        found = inverses(matrices)
        good = good & regular(matrices, found)
        # Its value is not needed, and its graph is made where it is used: no activations are kept.
        slopes = checkpoint(group.slopes, point.w, use_reentrant=False, preserve_rng_state=False)
        states = Linearized.apply(states, x, group.h * slopes, found, group.theta)
    return states, solved(point.w, point.norm, progress.steps, good)


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
    first = b + group.h * layer_sums(group.slopes(b), group.theta)
    second = b + group.h * layer_sums(group.slopes(first), group.theta)
    contracts = rms(second - first) < rms(first - b)
    point = _at(group, torch.where(per_sample(contracts, b), second, b), b)
    count = torch.zeros_like(point.norm, dtype=torch.int32)
    return point, _Progress(torch.ones_like(point.norm), count, ~_converged(group, point, b))


def _converged(group: Group, point: _Point, b: Tensor) -> Tensor:
    own = rms(point.w)
    size = torch.maximum(rms(b), own)
    converged = (point.norm <= group.atol + group.rtol * size) & size.isfinite()
    if group.theta == 1:
        asked = LayerTest(group.layer_rtol, group.layer_atol, theta=1.0)
        return asked.each(converged, point.r, b, point.w)
    # The error of the states is that of the stages times h F'. This is the largest entry of I - h M F'.
    largest = _matrices(group, point).abs().amax(dim=(1, 2, 3))
    if point.w.shape[1] > 1:
        largest = torch.maximum(largest, point.blocks[:, :-1].abs().amax(dim=(1, 2, 3)))
    return converged & (largest * point.norm <= group.layer_atol + group.layer_rtol * own)


def _matrices(group: Group, point: _Point) -> Tensor:
    """(batch, rows, n, n), I - theta h F' of each layer."""
    n = point.w.shape[2]
    return torch.eye(n, dtype=point.w.dtype, device=point.w.device) - group.theta * point.blocks


def _at(group: Group, w: Tensor, b: Tensor) -> _Point:
    slopes, blocks = group.value_and_jacobian(w.flatten(0, 1))
    # Of one layout, so that all steps are the same to the compiler.
    slopes, blocks = slopes.reshape(w.shape).contiguous(), blocks.reshape(*w.shape, w.shape[2]).contiguous()
    r = b + group.h * layer_sums(slopes, group.theta) - w
    return _Point(w, slopes, group.h * blocks, r, rms(r))
