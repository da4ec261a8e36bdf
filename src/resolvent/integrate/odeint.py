"""`odeint`: adaptive integration of a batch of differential equations."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.check_field import can_check, check_proof
from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.problem import full_precision
from resolvent.equation.structure import Structured
from resolvent.fields.base import check_callable_field
from resolvent.integrate.adjoint import ContinuousAdjoint
from resolvent.integrate.arguments import (
    as_times,
    as_tolerance,
    check_memory,
    check_methods,
    check_state,
    check_steps,
)
from resolvent.integrate.events import Jumps, Watch, spans
from resolvent.integrate.flow import Flow, check_time, probe, vector_field_of
from resolvent.integrate.integrator import Integrator
from resolvent.integrate.method import Method, as_method
from resolvent.integrate.outputs import Outputs
from resolvent.integrate.result import Integration, IntegrationStatus, check_policy, report
from resolvent.integrate.structured import integrate_structured
from resolvent.schemes import tableaux
from resolvent.schemes.runge_kutta import RungeKutta
from resolvent.schemes.tableau import AdditiveTableau, Tableau


def odeint(
    field: Callable[[Any, Any], Any],
    y0: Structured,
    times: Any,
    scheme: str | Tableau | AdditiveTableau | RungeKutta = "auto",
    rtol: float | None = None,
    atol: float | Structured | None = None,
    *,
    jumps: Any = None,
    event: Callable[[Tensor, Any], Tensor] | None = None,
    memory: str = "store",
    derivatives: int = 1,
    matrix: bool | None = None,
    max_steps: int = 10_000,
    min_step: float | None = None,
    first_step: float | None = None,
    on_failure: str = "raise",
) -> Integration:
    """Integrates y' = F(t, y) with adaptive steps per sample. The result is differentiable.

    Every sample has its own steps, error estimate and Newton iterations: its result does not depend on the others. A
    step is accepted if the estimated error e of the state satisfies

        |e_i| <= atol_i + rtol * max(|y_i| before, |y_i| after)      for every component i.

    Gradients are those of the discrete solution with the accepted steps fixed, exact up to the tolerance of the stages:
    in y0, in the times, in parameters of the field, and in everything else it closes over.

    Arguments:
        field: F, called with the time (batch,) and the states (batch, *shape). It must treat each sample alone. If it
            declares `rowwise`, it is called with fewer rows once samples are done.
        y0: (batch, *shape), float64 or float32, the states at the first times. Or several such tensors of one dtype
            and device, as a tuple, list, dictionary or named tuple: field, event and the change of a jump are then
            called with such a structure, and all states of the result have it.
        times: the output times, (count,), or (count, batch) for one set per sample; increasing or decreasing. The
            integration begins at the first time.
        scheme: a table with embedded weights, such as `rs.schemes.tableaux.KVAERNO5` for stiff fields or
            `rs.schemes.tableaux.TSITOURAS5` for others. "auto" begins with the latter, and switches a sample to the
            former where it turns out to be stiff. `rs.schemes.tableaux.KENCARP4` is implicit in the `linear_part` that
            the field declares, and explicit in the rest.
        rtol: relative tolerance; None takes 1e-6 in float64 and 1e-4 in float32.
        atol: absolute tolerance, a number, or a tensor like a sample, in the structure of y0; None takes rtol / 1000.
        jumps: times at which the field jumps, (count,) or (count, batch), or `rs.integrate.Jumps` to change the state.
        event: a function of the time (batch,) and the states that returns one number per sample, (batch,). A sample
            stops where it crosses zero. `Integration.final` and `reached` are the state and the time there, both
            differentiable. It is called like the field, with fewer rows if that is `rowwise`. Two zeros in one step may
            be missed.
        memory: "store" keeps the graph of the accepted steps for the backward pass. "checkpoint" keeps only the states
            of their stages, and recomputes the graph of each step (first derivatives only). "adjoint" keeps nothing,
            and integrates the adjoint equation backward in time. Its gradients have the error of that integration, and
            are wrong or fail where the flow contracts strongly between two output times: it is here for comparison.
        derivatives: how many are exact for implicit methods; each takes one more evaluation of every stage. A
            derivative of higher order raises `DerivativeOrderError`. For explicit methods all are exact.
        matrix: whether implicit methods form and factorize I - h gamma J for each sample, or solve with products by
            GMRES, which takes less memory and, for stiff fields, more time. None forms it for at most 256 unknowns per
            sample.
        max_steps: the most steps of a sample, accepted or rejected.
        min_step: the size below which a step fails; None takes the rounding of the time.
        first_step: the size of the first step; None takes Hairer's rule.
        on_failure: "raise" a `ConvergenceError` if a sample does not reach its last time, "warn", or "ignore".

    Returns:
        An `rs.integrate.Integration` with the states at all times (count, batch, *shape), and the status and step
        counts of every sample.

    References: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section II.4; Hairer & Wanner,
    Solving ordinary differential equations II, section IV.8.
    """
    refuse_transforms("odeint")
    check_callable_field(field)
    if not isinstance(y0, Tensor):
        return integrate_structured(
            odeint,
            field,
            y0,
            atol,
            jumps,
            event,
            times=times,
            scheme=scheme,
            rtol=rtol,
            memory=memory,
            derivatives=derivatives,
            matrix=matrix,
            max_steps=max_steps,
            min_step=min_step,
            first_step=first_step,
            on_failure=on_failure,
        )
    check_state(y0)
    check_steps(max_steps, min_step, first_step)
    check_memory(memory, derivatives, jumps is not None or event is not None)
    check_policy(on_failure)
    if matrix not in (None, True, False):
        raise ValueError(f"matrix must be True, False or None, got {matrix!r}.")
    if event is not None and not callable(event):
        raise ValueError(f"event must be a function (t, y) that returns a number for each sample, got {event!r}.")
    methods = _methods(scheme)
    tolerance = as_tolerance(rtol, atol, y0)
    given = torch.as_tensor(times, device=y0.device)
    inference = torch.is_inference_mode_enabled()
    with outside_inference(y0, given) as (start, grid), frozen_weights(field) as frozen, full_precision(y0.device):
        grid = as_times(grid, start)
        between = spans(grid, jumps)
        flow = Flow(vector_field_of(frozen, inference), tuple(y0.shape[1:]), matrix)
        check_methods(methods, flow, memory)
        check_time(flow, grid, start)
        flat = start.reshape(len(start), -1)
        depends = probe(flow, grid[0], flat)
        if len(start) > 1 and can_check(start):
            check_proof(frozen, start, grid[0].to(start.dtype))
        outputs = Outputs(grid, flat)
        # Tensors that a change or an event closes over may also require a gradient.
        more = event is not None or (isinstance(jumps, Jumps) and jumps.change is not None)
        graph = torch.is_grad_enabled() and (
            more or depends or any(x.requires_grad for x in (grid, between.bounds, flat))
        )
        integrator = Integrator(
            methods,
            flow,
            tolerance,
            outputs,
            None if event is None else Watch(event, flow),
            max_steps,
            min_step,
            first_step,
            graph=graph and memory != "adjoint",
            checkpoint=memory == "checkpoint",
            derivatives=derivatives,
        )
        point = integrator.run(between, flat)
        states = outputs.states()
        if graph and memory == "adjoint":
            done = integrator.status == IntegrationStatus.DONE
            adjoint = ContinuousAdjoint(methods, flow, tolerance, max_steps, min_step, done)
            states = adjoint.attach(states, flat, grid)
            point.y = torch.where(done[:, None], states[-1], point.y)
    rejected = integrator.attempts - integrator.accepted
    result = Integration(
        times=given,
        states=states.reshape(len(grid), *y0.shape),
        status=integrator.status,
        accepted=integrator.accepted,
        rejected=rejected,
        reached=point.t,
        final=point.y.reshape(y0.shape),
        evaluations=flow.evaluations,
    )
    report(result, on_failure)
    return result


def _methods(scheme: object) -> tuple[Method, ...]:
    if isinstance(scheme, str):
        if scheme != "auto":
            raise ValueError(f'scheme must be a table such as rs.schemes.tableaux.KVAERNO5, or "auto", got {scheme!r}.')
        return as_method(tableaux.TSITOURAS5), as_method(tableaux.KVAERNO5)
    return (as_method(scheme),)
