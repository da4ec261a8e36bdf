"""One step: an attempt without a graph, and an accepted step with one.

With a graph, the size of the step is fixed, and the stages are known. An explicit one is evaluated again. An implicit
one, K = h F(t, b + gamma K), is attached by the implicit function theorem: h F(t, b + gamma K), evaluated at the known
K, has the graph of b, h, t and everything F closes over. Applying A^{-1}, A = I - h gamma F', to it gives the
derivative of K.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.implicit_function import InverseMap, apply_inverse
from resolvent.integrate.additive import additive_stages, filtered_error
from resolvent.integrate.control import Tolerance
from resolvent.integrate.coupled import coupled_stages, repeat_coupled
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.newton import Factors, Products, SimplifiedNewton, System
from resolvent.integrate.samples import Interval, Point, Samples, add, from_last_step


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
    # The known contraction becomes less certain with each step.
    samples.contraction = samples.contraction**0.8
    if method.explicit is not None:
        h, times = interval.h.to(y.dtype)[:, None], [interval.time(c) for c in table.c]
        increments = additive_stages(method, flow, times, h, y)
        end, error = add(y, table.b, increments), filtered_error(method, flow, increments, h)
        solved, rate = running, torch.zeros_like(y[:, 0])
    else:
        make = coupled_stages if method.coupled else _stages
        increments, states, solved, rate = make(method, flow, tolerance, samples, interval, system, running)
        end = states[-1] if table.stiffly_accurate else add(y, table.b, increments)
        error = add(torch.zeros_like(y), method.error, increments)
        if method.filtered:
            assert system is not None
            error = system.filter(error)
    scale = tolerance.scale(torch.maximum(y.abs(), end.abs()))
    estimate = method.caution * tolerance.norm(error, scale)
    trial = Trial(increments, end, estimate, solved, rate)
    if method.twin and not method.implicit:
        # In the weighted norm: the stiff component may be the smallest one.
        slopes, apart = increments[-1] - increments[-2], states[-1] - states[-2]
        trial.stiffness = tolerance.norm(slopes, scale) / tolerance.norm(apart, scale).clamp(min=1e-30)
    return trial


def _stages(
    method: Method,
    flow: Flow,
    tolerance: Tolerance,
    samples: Samples,
    interval: Interval,
    system: System | None,
    wanted: Tensor,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """The increments and the states of the stages, one after the other, whether they were solved, and the rate."""
    table, y = method.tableau, samples.y
    h = interval.h.to(y.dtype)[:, None]
    newton, weights = SimplifiedNewton(tolerance, tolerance.newton(y.dtype)), tolerance.scale(y).reciprocal()
    tau, increments = method.diagonal * h, list[Tensor]()
    solved, rate, states = wanted, torch.zeros_like(y[:, 0]), [y]
    for i, (row, c) in enumerate(zip(table.A, table.c, strict=True)):
        b, t = add(y, row[:i], increments), interval.time(c)
        if row[i] == 0:
            slope = samples.slope if i == 0 and method.keeps_slope else flow(t, b)
            increments.append(h * slope)
        else:
            assert system is not None
            guess = row[i] * _guess(method, i, increments, h, samples)
            stage = newton.solve(_stage_equation(flow, t, b, tau), guess, weights, system, samples, solved)
            increments.append(stage.increment / row[i])
            solved, rate = stage.converged, torch.maximum(rate, stage.rate)
            b = b + stage.increment
        states.append(b)
    return increments, states, solved, rate


def _stage_equation(flow: Flow, t: Tensor, b: Tensor, tau: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: tau * flow(t, b + z)


def _guess(method: Method, i: int, increments: list[Tensor], h: Tensor, samples: Samples) -> Tensor:
    """A guess of the increment of stage i, from the earlier stages or, if these are few, from the last step."""
    if len(set(method.tableau.c[:i])) > 2:
        return add(torch.zeros_like(h), method.guesses[i], increments)
    return from_last_step(method.tableau.c[i], h, samples)


class StageSystems:
    """A of the stages of one step, for the derivatives of their increments, computed on first use.

    For stages that are solved one by one A = I - h a_ii F'; for coupled ones it has the blocks I - h a_ij F'(W_i).

    Arguments:
        method, flow: the table, and the field.
        times, states: (batch,) and (batch, n) of each implicit stage.
        h: (batch,).
    """

    def __init__(self, method: Method, flow: Flow, times: list[Tensor], states: list[Tensor], h: Tensor) -> None:
        self.method, self.flow, self.times, self.states = method, flow, times, states
        self.tau = h if method.coupled else method.diagonal * h
        self._systems: list[System] = []

    def inverse(self, i: int, order: int) -> InverseMap:
        """A^{-1} of the i-th implicit stage, or of all coupled ones, for derivatives up to `order`."""

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
        if self.method.coupled:
            A = self.method.modes.A.tolist()
            rows = [torch.cat([a * matrix for a in row], 2) for row, matrix in zip(A, matrices, strict=True)]
            matrices = [torch.cat(rows, 1)]
        identity = torch.eye(matrices[0].shape[-1], dtype=matrices[0].dtype, device=matrices[0].device)
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
    times = [interval.time(c) for c in table.c]
    later = times
    if point.dt is not None and dh is not None:
        later = [t + point.dt + c * dh for t, c in zip(times, table.c, strict=True)]
    if method.explicit is not None:
        increments = additive_stages(method, flow, later, h, y)
        return torch.stack(increments), add(y, table.b, increments)
    implicit = [i for i, row in enumerate(table.A) if any(row[i:])]
    known_states = [add(y.detach(), table.A[i], list(known)) for i in implicit]
    systems = StageSystems(method, flow, [times[i] for i in implicit], known_states, interval.h)
    if method.coupled:
        found = repeat_coupled(method, flow, later, h, point, known, systems.inverse(0, derivatives), derivatives)
        return found, add(y, table.b, list(found))
    increments = []
    b = y
    for i, row in enumerate(table.A):
        b = add(y, row[:i], increments)
        if i == 0 and method.keeps_slope:
            increments.append(h * point.slope)
        elif row[i] == 0:
            increments.append(h * flow(later[i], b))
        else:
            inverse = systems.inverse(implicit.index(i), derivatives)
            increment = apply_inverse(inverse, h * flow(later[i], b + row[i] * known[i]), known[i])
            for _ in range(1, derivatives):
                defect = h * flow(later[i], b + row[i] * increment) - increment
                increment = apply_inverse(inverse, defect, known[i]) + (increment - known[i])
            increments.append(increment)
            b = b + row[i] * increments[-1]
    end = b if table.stiffly_accurate else add(y, table.b, increments)
    return torch.stack(increments), end
