"""`resolve`, the entry point: solves w = b + tau F(w)."""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.adjoint import Adjoint, ImplicitAdjoint, Start
from resolvent.equation.allocation import LARGE_STATE, keep_freed_memory
from resolvent.equation.failure import Policy, as_policy
from resolvent.equation.function import Function, as_function
from resolvent.equation.modes import without_inference_tensors
from resolvent.equation.options import SolveOptions, expect, precision_of
from resolvent.equation.problem import NonlinearProblem, changed, full_precision
from resolvent.equation.solution import Solution
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import Stopping, StoppingRule
from resolvent.equation.structure import Structured, structure_of
from resolvent.equation.torch_func import forward_mode, outside_inference
from resolvent.errors import ResolventError
from resolvent.solvers.auto import Auto
from resolvent.solvers.linear import LinearSolver, refuse_linear


def resolve(
    F: Callable[[Any], Any],
    b: Structured,
    tau: float | Tensor,
    w0: Structured | None = None,
    solver: Plan | None = None,
    stopping: StoppingRule | None = None,
    adjoint: Adjoint | None = None,
    on_failure: Policy = "raise",
    reuse: Solution | None = None,
) -> Solution:
    """Applies the resolvent of F: finds w with w = b + tau F(w), for every sample of a batch.

    The value is differentiable in b, tau and every tensor that F closes over; they need not be listed. The value,
    gradient and step count of a sample do not depend on the other samples of its batch.

    Arguments:
        F: any callable (batch, *shape) -> (batch, *shape) that treats each sample alone: row i of its result depends
            only on row i of its argument, and on what it closes over. It is evaluated many times and must be the same
            function each time. Wrap it in `rs.Rowwise` to let the solvers call it with fewer or repeated rows, or to
            declare its linear part. An attribute `linear_part` of F is also read.
        b: (batch, *shape), floating point. Or several such tensors of one dtype and device, as a tuple, list,
            dictionary or named tuple: F is then called with such a structure and returns one, and the tolerance holds
            for all entries of a sample together.
        tau: a number, a 0-d tensor, or one of shape (batch,).
        w0: first guess, like b. None takes b / (1 - tau c), the solution for the linear part of F alone, or b if F
            declares none. The solution depends on it only within the tolerance, and no gradient flows into it.
        solver: a solver or a plan of several; None takes `Auto()`.
        stopping: None takes `Stopping()`.
        adjoint: None takes `ImplicitAdjoint()`: exact first derivatives.
        on_failure: what to do about samples that did not converge: "raise" a `ConvergenceError`, "warn" with a
            `resolvent.errors.ConvergenceWarning`, "ignore", or "mask", which keeps their best iterate, gives them no
            gradient and counts them, see `rs.Mask`. The backward solve follows the same policy.
        reuse: the solution of a similar problem, such as the last step of a trajectory. `Chord` starts from its
            factors, `Broyden` from its corrections; other solvers ignore it.

    Returns:
        A `Solution` with the value, in the structure of b, and, per sample, status, residual and number of steps.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks. All their implicit layers are built
    from the resolvent J_{tau F}(b).
    """
    options = solve_options(solver, stopping, adjoint, on_failure)
    if reuse is not None and not isinstance(reuse, Solution):
        raise ValueError(f"reuse must be the rs.Solution of an earlier solve, or None, got {reuse!r}.")
    if isinstance(b, Tensor):
        return resolve_with(options, as_function(F), b, tau, w0, reuse)
    structure = structure_of(b, "b")
    first = None if w0 is None else structure.flatten(w0, "w0")
    with structure.restored_errors():
        solution = resolve_with(
            options, structure.function(as_function(F)), structure.flatten(b, "b"), tau, first, reuse
        )
    return structure.solution(solution)


def solve_options(
    solver: Plan | None, stopping: StoppingRule | None, adjoint: Adjoint | None, on_failure: Policy
) -> SolveOptions:
    """The options of a solve, checked; None becomes the default."""
    solver = expect(solver, Plan, Auto(), "solver", "rs.Newton()")
    if isinstance(solver, LinearSolver):
        refuse_linear(solver)
    stopping = expect(stopping, StoppingRule, Stopping(), "stopping", "rs.Stopping(rtol=1e-6)")
    adjoint = expect(adjoint, Adjoint, ImplicitAdjoint(), "adjoint", "rs.ImplicitAdjoint()")
    on_failure = as_policy(on_failure)
    if stopping.fixed and on_failure != "ignore":
        raise ValueError(
            f"rs.FixedSteps(...) never checks whether samples have converged, and cannot {on_failure}: take "
            'on_failure="ignore", and read the status of the solution.'
        )
    return SolveOptions(solver, stopping, adjoint, on_failure)


def resolve_with(
    options: SolveOptions,
    F: Function,
    b: Tensor,
    tau: float | Tensor,
    w0: Tensor | None = None,
    reuse: Solution | None = None,
    traced: bool = False,
) -> Solution:
    """`resolve` with checked options and a wrapped F. `traced` says that the call is already excluded from
    torch.compile."""
    if "torch._dynamo" in sys.modules and not traced:
        return _outside_of_graphs()(options, F, b, tau, w0, reuse, True)
    if torch.is_inference_mode_enabled():
        if forward_mode():
            raise ResolventError("Inference mode loses tangents: take torch.no_grad() around forward-mode derivatives.")
        # Newton and the descent methods need the derivative of F, which inference mode forbids.
        with torch.inference_mode(False), torch.no_grad():
            b, tau, w0 = (outside_inference(x) for x in (b, tau, w0))
            return resolve_with(options, without_inference_tensors(F), b, tau, w0, reuse, traced)
    problem = _pose(F, b, tau, may_read=not options.stopping.fixed)
    first = problem.precondition(problem.b).detach() if w0 is None else _first_guess(w0, b).to(problem.b.dtype)
    with full_precision(b.device):
        solution, value = options.adjoint.differentiable(problem, Start(first, w0, reuse), options)
    if options.observe is not None:
        options.observe(solution)
    return changed(solution, value=value.to(b.dtype))


def _outside_of_graphs() -> Callable[..., Solution]:
    """`resolve_with`, excluded from torch.compile. Made on first use: the decorator imports the compiler, which takes
    seconds."""
    global _disabled
    if _disabled is None:
        _disabled = torch.compiler.disable(resolve_with)
    return _disabled


_disabled: Callable[..., Solution] | None = None


def _pose(F: Function, b: Tensor, tau: float | Tensor, may_read: bool) -> NonlinearProblem:
    _check_right_hand_side(b)
    if b.is_cpu and b.numel() * b.element_size() >= LARGE_STATE:
        keep_freed_memory()
    working = torch.promote_types(b.dtype, torch.float32)
    precision = precision_of(b)
    autocast = torch.is_autocast_enabled(b.device.type) and b.dtype != torch.float64
    return NonlinearProblem(
        function=F,
        b=b.to(working),
        tau=_step(tau, b, working),
        argument_dtype=b.dtype,
        precision=precision,
        autocast=precision if autocast else None,
        may_read=may_read,
    )


def _check_right_hand_side(b: Tensor) -> None:
    if not b.is_floating_point():
        advice = "solve for the real parts, torch.view_as_real(b)" if b.is_complex() else "convert it with .float()"
        raise ValueError(f"b must be a tensor of a real floating-point type, got {b.dtype}: {advice}.")
    if b.dim() == 0 or math.prod(b.shape[1:]) == 0:
        raise ValueError(f"b must be (batch, *shape) with at least one unknown per sample, got shape {tuple(b.shape)}.")


def _step(tau: float | Tensor, b: Tensor, working: torch.dtype) -> float | Tensor:
    if not isinstance(tau, Tensor):
        if not isinstance(tau, int | float) or not math.isfinite(tau):
            raise ValueError(f"tau must be a finite number or a tensor, got {tau!r}.")
        return float(tau)
    if not tau.is_floating_point():
        raise ValueError(f"tau must be of a real floating-point type, got a tensor of {tau.dtype}.")
    if tau.device != b.device and tau.dim() > 0:
        raise ValueError(f"tau is on {tau.device} but b on {b.device}; move one of them.")
    if tau.dim() == 0:
        return tau.to(device=b.device, dtype=working)
    if tau.shape != b.shape[:1]:
        raise ValueError(
            f"tau must be 0-d or have one entry for each of the {b.shape[0]} samples, got shape {tuple(tau.shape)}."
        )
    return tau.to(working).reshape(-1, *(1,) * (b.dim() - 1))


def _first_guess(w0: Tensor, b: Tensor) -> Tensor:
    if not isinstance(w0, Tensor) or w0.shape != b.shape or w0.dtype != b.dtype or w0.device != b.device:
        got = f"{tuple(w0.shape)}, {w0.dtype} on {w0.device}" if isinstance(w0, Tensor) else type(w0).__name__
        raise ValueError(f"w0 must be like b, {tuple(b.shape)}, {b.dtype} on {b.device}; got {got}.")
    return w0.detach()
