"""One accepted step with a graph, with its size fixed.

The stages are known. An explicit one is evaluated again. An implicit one, K = h F(t, b + gamma K), is attached by the
implicit function theorem: h F(t, b + gamma K), evaluated at the known K, has the graph of b, h, t and everything F
closes over. Applying A^{-1}, A = I - h gamma F', to it gives the derivative of K.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.implicit_function import InverseMap, apply_inverse
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.systems import Factors, Products, System
from resolvent.integrate.trial import Interval, add


@dataclass
class Point:
    """The current point of a replay, with a graph.

    Attributes:
        t: (batch,), the time.
        y, slope: (batch, n), the state and F there.
        dt: (batch,), zero, with the derivative of the time; None if the times have none.
    """

    t: Tensor
    y: Tensor
    slope: Tensor
    dt: Tensor | None

    def take(self, rows: slice | Tensor) -> "Point":
        """Only the samples `rows`."""
        return Point(self.t[rows], self.y[rows], self.slope[rows], None if self.dt is None else self.dt[rows])


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
