"""The continuous adjoint: gradients by a second integration, backward in time. They are not exact.

With a cotangent g of y(T), the gradient follows from

    y' = F(t, y),      a' = -F_y(t, y)^T a,      a(T) = g,      integrated from T to t_0,

    dL/dy_0 = a(t_0),      dL/dgamma = integral of a^T F_gamma(t, y) dt.

It is the gradient of the continuous solution, not of the computed one, and the backward integration has errors of its
own: it recomputes y, which is unstable wherever the forward flow contracts strongly.

References: Chen et al., Neural ordinary differential equations, 2018; Kidger et al., Hey, that's not an ODE, 2021 (the
integral is not part of the error estimate).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.function import VectorField
from resolvent.equation.norms import power_of_two
from resolvent.errors import ConvergenceError, DerivativeOrderError
from resolvent.integrate.control import Tolerance
from resolvent.integrate.events import spans
from resolvent.integrate.flow import Flow
from resolvent.integrate.integrator import Integrator
from resolvent.integrate.method import Method
from resolvent.integrate.outputs import Outputs
from resolvent.integrate.result import IntegrationStatus as Status
from resolvent.integrate.samples import AcceptedSteps, add


@dataclass(frozen=True)
class ContinuousAdjoint:
    """Attaches gradients to states that were integrated without a graph.

    Attributes:
        methods, flow, tolerance, max_steps, min_step: those of the forward integration.
        done: (batch,), the samples that reached their last time. The others get no gradient.
    """

    methods: tuple[Method, ...]
    flow: Flow
    tolerance: Tolerance
    max_steps: int
    min_step: float | None
    done: Tensor

    def attach(self, states: Tensor, y0: Tensor, times: Tensor) -> Tensor:
        """The states (count, batch, n) with a graph to y0 (batch, n), times (count, batch) and what F closes over."""
        with torch.enable_grad():
            leaves = _leaves(self.flow(times[0].detach(), y0.detach()))
        found: Tensor = _Attach.apply(self, states, y0, times, *leaves)
        return found

    def pull_back(
        self, states: Tensor, times: Tensor, leaves: list[Tensor], cotangents: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The cotangents of y0, of the times, and of the leaves."""
        sums = [torch.zeros_like(leaf) for leaf in leaves]
        cotangents = torch.where(self.done[:, None], cotangents, 0.0)
        a = torch.zeros_like(states[0])
        of_times = torch.zeros_like(times)
        for k in range(len(times) - 1, 0, -1):
            slope = self.flow(times[k], states[k])
            of_times[k] = torch.where(self.done, (cotangents[k] * slope).sum(1), 0.0)
            a = self._back(times[k], times[k - 1], states[k], a + cotangents[k], leaves, sums)
        of_times[0] = -(a * self.flow(times[0], states[0])).sum(1)
        return a + cotangents[0], of_times, sums

    def _back(
        self, late: Tensor, early: Tensor, y: Tensor, a: Tensor, leaves: list[Tensor], sums: list[Tensor]
    ) -> Tensor:
        """The cotangent at the earlier times (batch,), from that at the later ones; adds to the sums of the leaves."""
        # The tolerance is meant for cotangents of about one.
        unit = power_of_two(torch.where(a == 0, 1.0, a))[:, None]
        early = torch.where(self.done, early, late)
        both = torch.cat([torch.where(self.done[:, None], y, 0.0), a / unit], 1)
        atol = self.tolerance.atol
        tolerance = replace(self.tolerance, atol=atol if isinstance(atol, float) else atol.repeat(2))
        field = VectorField(self._slopes, self.flow.field.rowwise, self.flow.field.autonomous)
        flow = Flow(field, (2 * self.flow.size,), self.flow.matrix)
        grid = torch.stack([late, early])
        integrator = Integrator(
            self.methods, flow, tolerance, Outputs(grid, both), None, self.max_steps, self.min_step, None,
            graph=False, checkpoint=False, derivatives=1,
            observe=lambda method, steps: self._integrate(method, steps, len(y), unit, leaves, sums),
        )  # fmt: skip
        point = integrator.run(spans(grid, None), both)
        failed = integrator.status != Status.DONE
        if bool(failed.any()):
            raise ConvergenceError(
                f"The continuous adjoint failed for {int(failed.sum())} of {len(failed)} samples, near t = "
                f"{point.t[failed][0].item():.6g}: its backward integration is unstable where the flow contracts. Take "
                "memory='store' or 'checkpoint', whose gradients are exact, or more output times.",
                None,
            )
        return point.y[:, self.flow.size :] * unit

    def _slopes(self, t: Tensor, both: Tensor) -> Tensor:
        """(F, -F_y^T a) for (y, a), differentiable for the Jacobian of implicit methods."""
        y, a = both.chunk(2, dim=1)
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            image = self.flow(t, y)
            if not image.requires_grad:
                return torch.cat([image, torch.zeros_like(a)], 1)
            (pulled,) = torch.autograd.grad(image, y, a, create_graph=wanted, allow_unused=True)
        pulled = torch.zeros_like(a) if pulled is None else pulled
        found = torch.cat([image, -pulled], 1)
        return found if wanted else found.detach()

    def _integrate(
        self, method: Method, steps: AcceptedSteps, batch: int, unit: Tensor, leaves: list[Tensor], sums: list[Tensor]
    ) -> None:
        """Adds the integral of a^T F_gamma over the accepted steps, by the quadrature of the method."""
        if not leaves:
            return
        n, sample = self.flow.size, steps.sample
        for i, weight in enumerate(method.tableau.b):
            if weight == 0:
                continue
            stage = add(steps.start, method.tableau.A[i], list(steps.increments))
            t, y = steps.interval.time(method.tableau.c[i]), stage[:, :n]
            # The integral runs from late to early times: its steps are negative.
            a = -weight * steps.interval.h.to(y.dtype)[:, None] * stage[:, n:] * unit[sample]
            if not self.flow.field.rowwise:  # The field is called with the whole batch; the others count nothing.
                zeros = y.new_zeros(batch, n)
                t = t.new_zeros(batch).index_copy(0, sample, t)
                y, a = zeros.index_copy(0, sample, y), zeros.index_copy(0, sample, a)
            with torch.enable_grad():
                image = self.flow(t, y)
            found = torch.autograd.grad(image, leaves, a, retain_graph=True, allow_unused=True)
            for total, part in zip(sums, found, strict=True):
                if part is not None:
                    total += part


class _Attach(torch.autograd.Function):
    """Returns the states; differentiable in y0, the times and the leaves."""

    @staticmethod
    def forward(
        ctx: Any, adjoint: ContinuousAdjoint, states: Tensor, y0: Tensor, times: Tensor, *leaves: Tensor
    ) -> Tensor:
        ctx.adjoint, ctx.leaves = adjoint, list(leaves)
        ctx.save_for_backward(states, times)
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise DerivativeOrderError(
                "The continuous adjoint has first derivatives only, but a graph of them was requested "
                "(create_graph=True): take memory='store' with derivatives=2."
            )
        states, times = ctx.saved_tensors
        return None, None, *_flat(ctx.adjoint.pull_back(states, times, ctx.leaves, cotangents[0]))


def _flat(found: tuple[Tensor, Tensor, list[Tensor]]) -> tuple[Tensor, ...]:
    return found[0], found[1], *found[2]


def _leaves(image: Tensor) -> list[Tensor]:
    """The leaves that a value depends on and that require a gradient."""
    found: dict[int, Tensor] = {}
    nodes, seen = [image.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found[id(leaf)] = leaf
        nodes += [parent for parent, _ in node.next_functions]
    return list(found.values())
