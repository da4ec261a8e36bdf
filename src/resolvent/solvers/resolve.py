"""The entry point: solve w = b + tau F(w)."""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.core.adjoint import Adjoint, Choices, Context, ImplicitAdjoint
from resolvent.core.failure import report
from resolvent.core.iterate import solve
from resolvent.core.problem import Problem, Rowwise, full_precision
from resolvent.core.solution import Solution
from resolvent.core.solver import Solver
from resolvent.core.stopping import Stopping
from resolvent.core.transforms import ClosedOver, outside_inference
from resolvent.solvers.arguments import check_solving, expect
from resolvent.solvers.auto import Auto


@torch.compiler.disable
def resolve(
    F: Callable[[Tensor], Tensor],
    b: Tensor,
    tau: float | Tensor,
    w0: Tensor | None = None,
    solver: Solver | None = None,
    stopping: Stopping | None = None,
    adjoint: Adjoint | None = None,
    on_failure: str = "raise",
    reuse: Solution | None = None,
) -> Solution:
    """Applies the resolvent of F: finds w with w = b + tau F(w), for every sample of a batch.

    The value is differentiable in b, tau and every tensor that F closes over, and none of them has to be named. A
    sample's value, gradient and step count do not depend on the other samples of its batch.

    Arguments:
        F: any callable (batch, *shape) -> (batch, *shape) that treats samples apart: row i of its result depends on
            row i of its argument only, and on whatever it closes over. It is evaluated many times and has to be the
            same function each time. Wrap it in `Rowwise` to let the solvers call it with fewer or repeated rows, or
            to declare its linear part; a `linear_part` attribute of F is read, too.
        b: (batch, *shape), floating point.
        tau: a number, a tensor of no dimension, or one of shape (batch,).
        w0: first guess, like b; None takes b / (1 - tau c), the solution for the linear part of F alone, and b where F
            declares none. The solution does not depend on it beyond the tolerance, and no gradient flows into it.
        solver: None takes `Auto()`.
        stopping: None takes `Stopping()`.
        adjoint: None takes `ImplicitAdjoint()`: exact first derivatives.
        on_failure: what to do about samples that did not converge: "raise" a `ConvergenceError`, "warn", or "ignore".
            The backward solve follows the same policy.
        reuse: the solution of a similar problem, such as the last step of a trajectory: a solver that learns as it
            goes (`Chord` its factors, `Broyden` its corrections) starts from what it learned there.

    Returns:
        A `Solution` with the value and, sample by sample, its status, residual and number of steps.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks. The resolvent J_{tau F}(b) is the
    one operation that all their implicit layers are made of.
    """
    if torch.is_inference_mode_enabled():
        # Newton and the descent methods need the derivative of F, which inference mode forbids.
        with torch.inference_mode(False), torch.no_grad():
            options = (solver, stopping, adjoint, on_failure, reuse)
            return resolve(_function_outside_inference(F), *(outside_inference(x) for x in (b, tau, w0)), *options)
    problem = _pose(F, b, tau)
    start = problem.precondition(problem.b).detach() if w0 is None else _first_guess(w0, b).to(problem.b.dtype)
    check_solving(solver, stopping, adjoint, on_failure)
    expect(reuse, Solution, None, "reuse", "the Solution of an earlier solve")
    solver, stopping, adjoint = solver or Auto(), stopping or Stopping(), adjoint or ImplicitAdjoint()

    def run(posed: Problem) -> Solution:
        solution = solve(posed, solver, stopping, start, reuse)
        if not stopping.blind:
            report(posed, solution, on_failure, w0)
        return solution

    with full_precision(b.device):
        solution, value = adjoint.differentiable(Context(problem, run, Choices(solver, stopping, on_failure)))
    return dataclasses.replace(solution, value=value.to(b.dtype))


def _function_outside_inference(F: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """F with copies in place of what it closes over from inference mode, which autograd refuses to save.

    The copies are looked for only once F has failed for want of them.
    """
    if isinstance(F, Rowwise):
        F = Rowwise(F.function, *(outside_inference(c) for c in F.conditions), linear_part=F.linear_part)
    bound: list[Callable[[Tensor], Tensor]] = []

    def attempt(w: Tensor) -> Tensor:
        if bound:
            return bound[0](w)
        try:
            return F(w)
        except RuntimeError as error:
            if "Inference tensors cannot be saved for backward" not in str(error):
                raise
        closed = ClosedOver(F, w.detach())
        bound.append(closed.bind([outside_inference(tensor) for tensor in closed.tensors]))
        return bound[0](w)

    attempt.linear_part = outside_inference(getattr(F, "linear_part", None))  # type: ignore[attr-defined]
    return F if isinstance(F, Rowwise) else attempt


def _pose(F: Callable[[Tensor], Tensor], b: Tensor, tau: float | Tensor) -> Problem:
    if not callable(F):
        raise ValueError(f"F must be callable, (batch, *shape) -> (batch, *shape), got {F!r}.")
    _check_states(b)
    if b.dim() == 0 or math.prod(b.shape[1:]) == 0:
        raise ValueError(f"b must be (batch, *shape) with at least one unknown a sample, got shape {tuple(b.shape)}.")
    working = torch.promote_types(b.dtype, torch.float32)
    precision = b.dtype
    if torch.is_autocast_enabled(b.device.type) and b.dtype != torch.float64:  # which autocast leaves alone
        precision = torch.get_autocast_dtype(b.device.type)
    return Problem(
        function=F,
        b=b.to(working),
        tau=_step(tau, b, working),
        linear_part=getattr(F, "linear_part", None),
        argument_dtype=b.dtype,
        precision=precision,
    )


def _check_states(b: object) -> None:
    if not isinstance(b, Tensor):
        advice = "make a tensor of it, torch.tensor(b)"
        if isinstance(b, list | tuple) and any(isinstance(part, Tensor) for part in b):
            advice = "make one tensor of its parts, as torch.stack or torch.cat do"
        raise ValueError(f"b must be a tensor (batch, *shape), got a {type(b).__name__}: {advice}.")
    if not b.is_floating_point():
        advice = "solve for the real parts, torch.view_as_real(b)" if b.is_complex() else "convert it with .float()"
        raise ValueError(f"b must be a tensor of a real floating-point type, got {b.dtype}: {advice}.")


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
            f"tau must have no dimension or one entry for each of the {b.shape[0]} samples, "
            f"got shape {tuple(tau.shape)}."
        )
    return tau.to(working).reshape(-1, *(1,) * (b.dim() - 1))


def _first_guess(w0: Tensor, b: Tensor) -> Tensor:
    if not isinstance(w0, Tensor) or w0.shape != b.shape or w0.dtype != b.dtype or w0.device != b.device:
        got = f"{tuple(w0.shape)}, {w0.dtype} on {w0.device}" if isinstance(w0, Tensor) else type(w0).__name__
        raise ValueError(f"w0 must be like b, {tuple(b.shape)}, {b.dtype} on {b.device}; got {got}.")
    return w0.detach()
