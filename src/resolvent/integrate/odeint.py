"""`odeint`: adaptive integration of a batch of differential equations."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.problem import full_precision
from resolvent.fields.base import check_callable_field
from resolvent.integrate.adjoint import ContinuousAdjoint
from resolvent.integrate.control import Tolerance
from resolvent.integrate.events import Jumps, Watch, spans
from resolvent.integrate.flow import Flow, check_time, probe, vector_field_of
from resolvent.integrate.integrator import Integrator
from resolvent.integrate.method import Method, as_method
from resolvent.integrate.outputs import Outputs
from resolvent.integrate.result import Integration, IntegrationStatus, check_policy, report
from resolvent.schemes import tableaux
from resolvent.schemes.runge_kutta import RungeKutta
from resolvent.schemes.tableau import AdditiveTableau, Tableau

# Default relative tolerances, well above the rounding of a state and of the field.
_RTOL = {torch.float64: 1e-6, torch.float32: 1e-4}


def odeint(
    field: Callable[[Any, Tensor], Tensor],
    y0: Tensor,
    times: Any,
    scheme: str | Tableau | AdditiveTableau | RungeKutta = "auto",
    rtol: float | None = None,
    atol: float | Tensor | None = None,
    *,
    jumps: Any = None,
    event: Callable[[Tensor, Tensor], Tensor] | None = None,
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
        y0: (batch, *shape), float64 or float32, the states at the first times.
        times: the output times, (count,), or (count, batch) for one set per sample; increasing or decreasing. The
            integration begins at the first time.
        scheme: a table with embedded weights, such as `rs.schemes.tableaux.KVAERNO5` for stiff fields or
            `rs.schemes.tableaux.TSITOURAS5` for others. "auto" begins with the latter, and switches a sample to the
            former where it turns out to be stiff. `rs.schemes.tableaux.KENCARP4` is implicit in the `linear_part` that
            the field declares, and explicit in the rest.
        rtol: relative tolerance; None takes 1e-6 in float64 and 1e-4 in float32.
        atol: absolute tolerance, a number, or a tensor like a sample; None takes rtol / 1000.
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
    _check_state(y0)
    _check_steps(max_steps, min_step, first_step)
    _check_memory(memory, derivatives, jumps is not None or event is not None)
    check_policy(on_failure)
    if matrix not in (None, True, False):
        raise ValueError(f"matrix must be True, False or None, got {matrix!r}.")
    if event is not None and not callable(event):
        raise ValueError(f"event must be a function (t, y) that returns a number for each sample, got {event!r}.")
    methods = _methods(scheme)
    tolerance = _as_tolerance(rtol, atol, y0)
    given = torch.as_tensor(times, device=y0.device)
    inference = torch.is_inference_mode_enabled()
    with outside_inference(y0, given) as (start, grid), frozen_weights(field) as frozen, full_precision(y0.device):
        grid = _as_times(grid, start)
        between = spans(grid, jumps)
        flow = Flow(vector_field_of(frozen, inference), tuple(y0.shape[1:]), matrix)
        _check_methods(methods, flow, memory)
        check_time(flow, grid, start)
        flat = start.reshape(len(start), -1)
        depends = probe(flow, grid[0], flat)
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


def _check_state(y0: object) -> None:
    if not isinstance(y0, Tensor) or y0.dtype not in _RTOL:
        got = y0.dtype if isinstance(y0, Tensor) else type(y0).__name__
        raise ValueError(f"y0 must be a tensor (batch, *shape) of float64 or float32, got {got}.")
    if y0.dim() < 2 or y0.numel() == 0:
        raise ValueError(
            f"y0 must be (batch, *shape) with at least one sample and one component, got shape {tuple(y0.shape)}: a "
            "single state is a batch of one, y0[None]."
        )
    if not bool(y0.isfinite().all()):
        raise ValueError(f"y0 must be finite, but {int((~y0.isfinite()).sum())} of its entries are NaN or infinite.")


def _as_times(times: object, y0: Tensor) -> Tensor:
    """The times as (count, batch) in double precision, with their graph."""
    given = torch.as_tensor(times, device=y0.device)
    if given.dim() not in (1, 2) or (given.dim() == 2 and given.shape[1] != len(y0)) or len(given) < 2:
        raise ValueError(
            f"times must be (count,) or (count, batch) with two times or more and a batch of {len(y0)}, got shape "
            f"{tuple(given.shape)}."
        )
    found = given.double() if given.dim() == 2 else given.double()[:, None].expand(-1, len(y0))
    gaps = found.detach().diff(dim=0)
    monotone = (gaps > 0).all(0) | (gaps < 0).all(0)
    if not bool(monotone.all()) or not bool(found.isfinite().all()):
        bad = int((~monotone).nonzero()[0, 0]) if not bool(monotone.all()) else 0
        raise ValueError(
            "times must be finite, and increase or decrease strictly for each sample; those of sample "
            f"{bad} are {[round(v, 6) for v in found[:, bad].tolist()[:8]]}."
        )
    return found


def _as_tolerance(rtol: float | None, atol: float | Tensor | None, y0: Tensor) -> Tolerance:
    rtol = _RTOL[y0.dtype] if rtol is None else rtol
    least = 8 * torch.finfo(y0.dtype).eps
    if not isinstance(rtol, int | float) or not least <= rtol < 1:
        raise ValueError(f"rtol must be a number between {least:.0e}, the rounding of {y0.dtype}, and 1, got {rtol!r}.")
    atol = 1e-3 * rtol if atol is None else atol
    if isinstance(atol, Tensor):
        if atol.shape not in (torch.Size(), y0.shape[1:]) or not bool((atol > 0).all()):
            raise ValueError(
                f"atol must be a positive number, or a tensor of positive ones like a sample, {tuple(y0.shape[1:])}, "
                f"got shape {tuple(atol.shape)} with the least entry {atol.min().item() if atol.numel() else None}."
            )
        return Tolerance(float(rtol), atol.detach().to(y0).reshape(-1))
    if not isinstance(atol, int | float) or not (math.isfinite(atol) and atol > 0):
        raise ValueError(f"atol must be a positive number or a tensor of them, got {atol!r}.")
    return Tolerance(float(rtol), float(atol))


def _check_steps(max_steps: object, min_step: object, first_step: object) -> None:
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise ValueError(f"max_steps must be a whole number, 1 or more, got {max_steps!r}.")
    for name, value in (("min_step", min_step), ("first_step", first_step)):
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, or None, got {value!r}.")


def _check_memory(memory: object, derivatives: object, interrupted: bool) -> None:
    if not isinstance(derivatives, int) or isinstance(derivatives, bool) or derivatives < 1:
        raise ValueError(f"derivatives counts those that are exact and must be 1 or more, got {derivatives!r}.")
    if memory not in ("store", "checkpoint", "adjoint"):
        raise ValueError(f"memory must be 'store', 'checkpoint' or 'adjoint', got {memory!r}.")
    if memory == "adjoint" and (interrupted or derivatives > 1):
        raise ValueError(
            "memory='adjoint' takes neither jumps nor events, and has first derivatives only: take 'store' or "
            "'checkpoint', whose gradients are exact."
        )


def _check_methods(methods: tuple[Method, ...], flow: Flow, memory: str) -> None:
    if any(method.coupled for method in methods) and not flow.matrix:
        raise ValueError(
            f"a scheme with coupled stages needs a matrix, which is not formed here ({flow.size} unknowns): take "
            "matrix=True, or a diagonally implicit scheme such as rs.schemes.tableaux.KVAERNO5."
        )
    if any(method.explicit is not None for method in methods):
        _ = flow.linear  # Raises if the field declares none.
        if memory == "adjoint":
            raise ValueError("memory='adjoint' takes no additive scheme: take 'store' or 'checkpoint'.")
