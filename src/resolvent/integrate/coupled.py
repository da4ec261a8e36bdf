"""Coupled stages, as of Radau's methods: all of a step are solved together."""

import torch
from torch import Tensor

from resolvent.equation.implicit_function import InverseMap, apply_inverse
from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.newton import SimplifiedNewton, System
from resolvent.integrate.samples import Interval, Point, Samples, from_last_step


def coupled_stages(
    method: Method,
    flow: Flow,
    tolerance: Tolerance,
    samples: Samples,
    interval: Interval,
    system: System | None,
    wanted: Tensor,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """The increments and the states of the stages, whether they were solved, and the rate of the iteration.

    The equation is Z = h (A (x) I) F(y + Z), for the distances Z of the stages from y.
    """
    assert system is not None
    y, modes, nodes = samples.y, method.modes, method.tableau.c[1:]
    h = interval.h.to(y.dtype)[:, None]
    A, inverse = (matrix.to(y) for matrix in (modes.A, modes.inverse))
    times = [interval.time(c) for c in nodes]

    def distances(increments: Tensor) -> Tensor:
        """Products with A by sums over the stages, whose rounding does not depend on the batch."""
        return (A[:, :, None] * increments[:, None]).sum(2)

    def G(z: Tensor) -> Tensor:
        states = y[:, None] + z.reshape(len(y), len(nodes), -1)
        return distances(h[:, None] * flow.at_stages(times, states)).reshape(z.shape)

    guess = distances(torch.stack([from_last_step(c, h, samples) for c in nodes], 1)).flatten(1)
    newton = SimplifiedNewton(tolerance, tolerance.newton(y.dtype))
    weights = tolerance.scale(y).reciprocal().repeat(1, len(nodes))
    stage = newton.solve(G, guess, weights, system, samples, wanted)
    z = stage.increment.reshape(len(y), len(nodes), -1)
    increments = (inverse[:, :, None] * z[:, None]).sum(2)
    states = (y[:, None] + z).unbind(1)
    return [h * samples.slope, *increments.unbind(1)], [y, y, *states], stage.converged, stage.rate


def repeat_coupled(
    method: Method,
    flow: Flow,
    times: list[Tensor],
    h: Tensor,
    point: Point,
    known: Tensor,
    inverse: InverseMap,
    derivatives: int,
) -> Tensor:
    """The increments of coupled stages with a graph, from the equation K = h F(y + A K) of all of them."""
    A, count = method.modes.A.to(point.y), method.stages - 1

    def slopes(increments: Tensor) -> Tensor:
        K = increments.reshape(len(h), count, -1)
        states = point.y[:, None] + (A[:, :, None] * K[:, None]).sum(2)
        return (h[:, None] * flow.at_stages(times[1:], states)).flatten(1)

    start = known[1:].transpose(0, 1).flatten(1)
    found = apply_inverse(inverse, slopes(start), start)
    for _ in range(1, derivatives):
        found = apply_inverse(inverse, slopes(found) - found, start) + (found - start)
    rest = found.reshape(len(h), count, -1).transpose(0, 1)
    return torch.cat([(h * point.slope)[None], rest])
