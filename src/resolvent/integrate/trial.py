"""One attempt at a step, for all samples of a run, without a graph."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.newton import SimplifiedNewton
from resolvent.integrate.samples import Samples
from resolvent.integrate.systems import System
from resolvent.schemes.tableau import Row


@dataclass(frozen=True)
class Interval:
    """The interval of a step of each sample.

    Attributes:
        t, h: (batch,), its start and its signed length.
        first, last: (batch,), the times at which the field is evaluated for the two ends. They differ from the ends by
            one rounding if the field jumps there.
        closed: (batch,), whether the field jumps at the end. No stage is then evaluated beyond it.
    """

    t: Tensor
    h: Tensor
    first: Tensor
    last: Tensor
    closed: Tensor

    def time(self, c: float) -> Tensor:
        """The time at the fraction c."""
        if c == 0:
            return self.first
        if c == 1:
            return self.last
        inside = self.t + c * self.h
        return torch.where(self.closed, self.last, inside) if c > 1 else inside


@dataclass
class Trial:
    """The result of an attempt.

    Attributes:
        increments: h times the slopes of the stages, (batch, n) each.
        y: (batch, n), the state at the end.
        estimate: (batch,), the error in the weighted norm.
        solved: (batch,), whether all stages were solved.
        rate: (batch,), the slowest contraction of the Newton iterations.
        stiffness: (batch,), h times an estimate of the largest eigenvalue; None if the method has no such estimate.
    """

    increments: list[Tensor]
    y: Tensor
    estimate: Tensor
    solved: Tensor
    rate: Tensor
    stiffness: Tensor | None = None


def attempt(
    method: Method,
    flow: Flow,
    tolerance: Tolerance,
    samples: Samples,
    interval: Interval,
    system: System | None,
    running: Tensor,
) -> Trial:
    """Tries a step; `system` is that of the stages, for implicit methods."""
    table, y = method.tableau, samples.y
    h = interval.h.to(y.dtype)[:, None]
    newton = SimplifiedNewton(flow, tolerance, tolerance.newton(y.dtype))
    # The known contraction becomes less certain with each step.
    samples.contraction = samples.contraction**0.8
    increments: list[Tensor] = []
    solved, rate, states = running, torch.zeros_like(y[:, 0]), [y]
    for i, (row, c) in enumerate(zip(table.A, table.c, strict=True)):
        b = add(y, row[:i], increments)
        if row[i] == 0:
            slope = samples.slope if i == 0 and method.keeps_slope else flow(interval.time(c), b)
            increments.append(h * slope)
        else:
            assert system is not None
            tau = row[i] * h
            guess = row[i] * _guess(method, i, increments, h, samples)
            stage = newton.solve(interval.time(c), b, guess, tau, system, samples, solved)
            increments.append(stage.increment / row[i])
            solved, rate = stage.converged, torch.maximum(rate, stage.rate)
            b = b + stage.increment
        states.append(b)
    end = states[-1] if table.stiffly_accurate else add(y, table.b, increments)
    error = add(torch.zeros_like(y), method.error, increments)
    if method.filtered:
        assert system is not None
        error = system.solve(error)
    scale = tolerance.scale(torch.maximum(y.abs(), end.abs()))
    estimate = method.caution * tolerance.norm(error, scale)
    trial = Trial(increments, end, estimate, solved, rate)
    if method.twin and not method.implicit:
        # In the weighted norm: the stiff component may be the smallest one.
        slopes, apart = increments[-1] - increments[-2], states[-1] - states[-2]
        trial.stiffness = tolerance.norm(slopes, scale) / tolerance.norm(apart, scale).clamp(min=1e-30)
    return trial


def _guess(method: Method, i: int, increments: list[Tensor], h: Tensor, samples: Samples) -> Tensor:
    """A guess of the increment of stage i, from the earlier stages or, if these are few, from the last step."""
    if len(set(method.tableau.c[:i])) > 2:
        return add(torch.zeros_like(h), method.guesses[i], increments)
    ahead = method.tableau.c[i] * h
    return h * (samples.slope + ahead * (samples.second + (0.5 * ahead) * samples.third))


def add(x: Tensor, weights: Row, terms: list[Tensor]) -> Tensor:
    """x plus the weighted sum of the terms, in this order, so that the rounding of a sample does not depend on the
    others."""
    total = x
    for weight, term in zip(weights, terms, strict=True):
        if weight != 0:
            total = torch.add(total, term, alpha=weight)
    return total
