"""One step: an attempt without a graph, and an accepted step with one.

With a graph, the size of the step is fixed, and the stages are known. An explicit one is evaluated again. An implicit
one, K = h F(t, b + gamma K), is attached by the implicit function theorem: h F(t, b + gamma K), evaluated at the known
K, has the graph of b, h, t and everything F closes over. Applying A^{-1}, A = I - h gamma F', to it gives the
derivative of K.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.implicit_function import InverseMap, apply_inverse
from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.newton import Factors, Products, SimplifiedNewton, System
from resolvent.integrate.samples import Interval, Point, Samples
from resolvent.schemes.tableau import Row


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


class StageSystems:
    """A = I - h gamma F' of the stages of one step, computed on first use.

    Arguments:
        flow: the field.
        times, states: (batch,) and (batch, n) of each implicit stage.
        tau: (batch,), h gamma.
    """

    def __init__(self, flow: Flow, times: list[Tensor], states: list[Tensor], tau: Tensor) -> None:
        self.flow, self.times, self.states, self.tau = flow, times, states, tau
        self._systems: list[System] = []

    def inverse(self, i: int, order: int) -> InverseMap:
        """A^{-1} of the i-th implicit stage, for derivatives up to `order`."""

        def solve(x: Tensor, transposed: bool, _: Sequence[Tensor]) -> Tensor:
            return self._system(i).solve(x, transposed)

        return InverseMap(solve, order)

    @torch.no_grad()
    def _system(self, i: int) -> System:
        if not self._systems:
            self._systems = self._make()
        return self._systems[i]

    def _make(self) -> list[System]:
        flow, count = self.flow, len(self.times)
        if not flow.matrix:
            rtol = 100 * torch.finfo(self.states[0].dtype).eps
            return [Products(flow, t, w, self.tau, rtol) for t, w in zip(self.times, self.states, strict=True)]
        if flow.field.rowwise:
            stacked = flow.step_matrix(torch.cat(self.times), torch.cat(self.states), self.tau.repeat(count))
            matrices = list(stacked.chunk(count))
        else:
            matrices = [flow.step_matrix(t, w, self.tau) for t, w in zip(self.times, self.states, strict=True)]
        identity = torch.eye(flow.size, dtype=matrices[0].dtype, device=matrices[0].device)
        return [Factors(identity - matrix) for matrix in matrices]


def repeat_step(
    method: Method, flow: Flow, interval: Interval, dh: Tensor | None, point: Point, known: Tensor, derivatives: int
) -> tuple[Tensor, Tensor]:
    """A step with a graph: its increments (stages, batch, n), and the state at its end.

    Arguments:
        method, flow, interval: as for the original step.
        dh: (batch,), zero, with the derivative of h.
        point: its start.
        known: (stages, batch, n), the increments.
        derivatives: how many are exact. Each takes one more evaluation of every implicit stage.
    """
    table, y = method.tableau, point.y
    h = interval.h.to(y.dtype) if dh is None else (interval.h + dh).to(y.dtype)
    h = h[:, None]
    implicit = [i for i, row in enumerate(table.A) if row[i] != 0]
    times = {i: interval.time(table.c[i]) for i in range(method.stages)}
    known_states = {i: add(y.detach(), table.A[i][: i + 1], list(known[: i + 1])) for i in implicit}
    tau = method.diagonal * interval.h
    systems = StageSystems(flow, [times[i] for i in implicit], list(known_states.values()), tau)
    increments: list[Tensor] = []
    b = y
    for i, row in enumerate(table.A):
        b = add(y, row[:i], increments)
        if i == 0 and method.keeps_slope:
            increments.append(h * point.slope)
            continue
        t = times[i]
        if point.dt is not None and dh is not None:
            t = t + point.dt + table.c[i] * dh
        if row[i] == 0:
            increments.append(h * flow(t, b))
        else:
            inverse = systems.inverse(implicit.index(i), derivatives)
            increment = apply_inverse(inverse, h * flow(t, b + row[i] * known[i]), known[i])
            for _ in range(1, derivatives):
                defect = h * flow(t, b + row[i] * increment) - increment
                increment = apply_inverse(inverse, defect, known[i]) + (increment - known[i])
            increments.append(increment)
            b = b + row[i] * increments[-1]
    end = b if table.stiffly_accurate else add(y, table.b, increments)
    return torch.stack(increments), end
