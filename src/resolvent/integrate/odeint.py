"""`odeint`: adaptive integration of a batch of differential equations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.function import Function, VectorField, as_vector_field
from resolvent.equation.modes import refuse_transforms, without_inference_tensors
from resolvent.equation.problem import full_precision
from resolvent.equation.structure import Structured
from resolvent.fields.base import check_callable_field
from resolvent.integrate.arguments import as_times, as_tolerance, check_memory, check_state, check_steps
from resolvent.integrate.events import Watch
from resolvent.integrate.failure import check_policy, report
from resolvent.integrate.flow import Flow
from resolvent.integrate.integrator import Integrator
from resolvent.integrate.jumps import Jumps, spans
from resolvent.integrate.method import Method, as_method
from resolvent.integrate.outputs import Outputs
from resolvent.integrate.result import Integration
from resolvent.integrate.structured import integrate_structured
from resolvent.schemes import tableaux
from resolvent.schemes.runge_kutta import RungeKutta
from resolvent.schemes.tableau import Tableau


def odeint(
    field: Callable[[Any, Any], Any],
    y0: Structured,
    times: Any,
    scheme: str | Tableau | RungeKutta = "auto",
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
            former where it turns out to be stiff.
        rtol: relative tolerance; None takes 1e-6 in float64 and 1e-4 in float32.
        atol: absolute tolerance, a number, or a tensor like a sample, in the structure of y0; None takes rtol / 1000.
        jumps: times at which the field jumps, (count,) or (count, batch), or `rs.integrate.Jumps` to change the state.
        event: a function of the time (batch,) and the states that returns one number per sample, (batch,). A sample
            stops where it crosses zero. `Integration.final` and `reached` are the state and the time there, both
            differentiable. It is called like the field, with fewer rows if that is `rowwise`. Two zeros in one step may
            be missed.
        memory: "store" keeps the graph of the accepted steps for the backward pass. "checkpoint" keeps only the states
            of their stages, and recomputes the graph of each step (first derivatives only).
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
    check_memory(memory, derivatives)
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
        flow = Flow(_vector_field(frozen, inference), tuple(y0.shape[1:]), matrix)
        _check_time(flow, grid, start)
        flat = start.reshape(len(start), -1)
        depends = _probe(flow, grid[0], flat)
        outputs = Outputs(grid, flat)
        # Tensors that a change or an event closes over may also require a gradient.
        more = event is not None or (isinstance(jumps, Jumps) and jumps.change is not None)
        integrator = Integrator(
            methods,
            flow,
            tolerance,
            outputs,
            None if event is None else Watch(event, flow),
            max_steps,
            min_step,
            first_step,
            graph=torch.is_grad_enabled()
            and (more or depends or any(x.requires_grad for x in (grid, between.bounds, flat))),
            checkpoint=memory == "checkpoint",
            derivatives=derivatives,
        )
        point = integrator.run(between, flat)
        states = outputs.states().reshape(len(grid), *y0.shape)
    rejected = integrator.attempts - integrator.accepted
    result = Integration(
        times=given,
        states=states,
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


def _vector_field(field: Any, inference: bool) -> VectorField:
    """The field, wrapped. In inference mode it gets copies of tensors made there."""
    wrapped = as_vector_field(field)
    if not inference:
        return wrapped
    call: Callable[..., Tensor] = without_inference_tensors(Function(lambda y, t: wrapped.call(t, y))).call
    return replace(wrapped, call=lambda t, y: call(y, t))


def _probe(flow: Flow, t: Tensor, y: Tensor) -> bool:
    """Whether the field depends on anything that requires a gradient. Raises if two calls give different results."""
    first, second = (flow(t.detach(), y.detach()) for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            "field gave two values for the same time and state: turn off what is drawn at random, such as dropout, "
            "with field.eval()."
        )
    return first.requires_grad


def _check_time(flow: Flow, times: Tensor, y: Tensor) -> None:
    """Raises if the field supports only one time for all samples: each sample has its own."""
    if len(y) == 1 or flow.field.autonomous:
        return
    with torch.no_grad():
        # Not at the first time: at t = 0 many time-dependent terms vanish.
        early, late = (times[0, 0] + s * (times[1, 0] - times[0, 0]) for s in (0.38, 0.62))
        odd = torch.arange(len(y), device=y.device) % 2 == 1
        mixed = torch.where(odd, late, early)
        try:
            one, other, each = (flow.field(t.expand(len(y)).to(y.dtype), y) for t in (early, late, mixed))
        except RuntimeError as error:
            raise ValueError(f"{_TIME} It raised: {error}") from error
        if not isinstance(each, Tensor) or each.shape != y.shape or one.shape != y.shape:
            return  # Reported elsewhere.
        expected = torch.where(odd.reshape(-1, *(1,) * (y.dim() - 1)), other, one)
        if not torch.allclose(each, expected, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise ValueError(f"{_TIME} Its values for samples with two times are not those for each of the times.")


_TIME = (
    "field is called with one time for each sample, a tensor t (batch,): reshape it, such as t[:, None], before it "
    "multiplies states (batch, n)."
)
