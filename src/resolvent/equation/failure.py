"""Failure policies: raise, warn or ignore."""

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solution import Solution, Status
from resolvent.equation.torch_func import any_true, transforming, whole
from resolvent.errors import ConvergenceError, ConvergenceWarning

POLICIES = ("raise", "warn", "ignore")

_ADVICE = {
    Status.MAX_STEPS: "more steps (Stopping(max_steps=...)), a faster solver (Newton for few unknowns, Anderson or "
    "NewtonKrylov for many), or a better first guess w0",
    Status.STALLED: "a tolerance above the rounding of F (Stopping(rtol=...), or float64), or another solver: a "
    "minimum of the residual that is not a root stops every descent method",
    Status.DIVERGED: "a solver that does not rely on contraction (Newton, NewtonKrylov), a smaller tau, or a field "
    "whose spectrum is bounded: a fixed point contracts only where tau * Lip(F) < 1, or where the field declares its "
    "linear part, and an equation at a pole has no solution",
    Status.NON_FINITE: "a look at F: it returned NaN or infinity at a finite argument; a smaller tau or a bounded "
    "field keeps the iterates where F is defined",
    Status.BREAKDOWN: "a smaller tau: I - tau F'(w) is singular, or nearly so, which is a pole of the layer; a field "
    "with tau * (largest real part of its spectrum) < 1 has none",
}
# What is nearly singular: the smallest singular value of I - tau F' below this.
_NEARLY_SINGULAR = 1e-2
# Samples and unknowns up to which the singular values are computed for a message.
_MOST_SAMPLES, _MOST_UNKNOWNS = 16, 64


def check_policy(on_failure: str) -> None:
    if on_failure not in POLICIES:
        raise ValueError(f"on_failure must be one of {POLICIES}, got {on_failure!r}.")


def report(
    problem: NonlinearProblem | LinearProblem,
    solution: Solution,
    on_failure: str,
    place: object = None,
    w0: Tensor | None = None,
) -> None:
    """Applies the policy to the samples that did not converge. Input that is not finite is an error under each.

    Arguments:
        problem, solution: what was solved, and how far it got.
        on_failure: the policy.
        place: where the equation stands in a network, for the message.
        w0: the first guess, if it was given.
    """
    if solution.all_converged:
        return
    if isinstance(problem, NonlinearProblem):
        _refuse_non_finite(b=problem.b, tau=problem.tau, w0=w0)
    if on_failure == "ignore":
        return
    message = describe(solution, problem.linear, place, _smallest_singular_value(problem, solution))
    if on_failure == "raise":
        raise ConvergenceError(message, solution)
    warnings.warn(message, ConvergenceWarning, stacklevel=3)


def _refuse_non_finite(**inputs: float | Tensor | None) -> None:
    # Looked for only now: what is not finite fails at its first residual, and what converged needs no check.
    for name, value in inputs.items():
        if isinstance(value, Tensor) and any_true(~value.detach().isfinite()):
            count = int((~whole(value.detach()).isfinite()).sum())
            raise ValueError(f"{name} must be finite, but {count} of its {value.numel()} entries are NaN or infinite.")


def describe(solution: Solution, backward: bool = False, place: object = None, smallest: float | None = None) -> str:
    """How many samples failed and how, where, the worst residual, and what to try."""
    status, residual = whole(solution.status).flatten(), whole(solution.residual).flatten()
    failed = status != Status.CONVERGED
    kinds = [(Status(int(code)), int((status == code).sum())) for code in status[failed].unique()]
    worst = torch.nan_to_num(residual[failed], nan=torch.inf).max().item()
    names = " then ".join(type(solver).__name__ for solver in solution.solvers)
    what = "The backward solve A^T u = g" if backward else "The solve of w = b + tau F(w)"
    where = "" if place is None else f" in {place}"
    counts = ", ".join(f"{count} {kind.meaning}" for kind, count in kinds)
    lines = [
        f"{what}{where} did not converge for {int(failed.sum())} of {status.numel()} samples ({counts}) with {names}; "
        f"worst residual {worst:.1e} (root mean square of a sample). What to try:"
    ]
    lines += [f"  - {kind.meaning}: {_ADVICE[kind]}" for kind, _ in kinds]
    if smallest is not None and smallest < _NEARLY_SINGULAR:
        lines.append(
            f"I - tau F' is nearly singular there (smallest singular value {smallest:.1e}): the layer is at a pole. "
            "rs.analysis.diagnose(block, x) shows how close each layer is, and what to change."
        )
    keep = "ImplicitAdjoint(on_failure=...)" if backward else 'on_failure="warn" or "ignore"'
    lines.append(f"To keep the best iterate all the same: {keep}; the statuses are in the solution.")
    return "\n".join(lines)


def _smallest_singular_value(problem: NonlinearProblem | LinearProblem, solution: Solution) -> float | None:
    """Of A = I - tau F'(w), among the first samples that failed; None where it is too costly for a message."""
    if transforming() or problem.size > _MOST_UNKNOWNS:
        return None
    failed = (solution.status != Status.CONVERGED).nonzero().squeeze(1)[:_MOST_SAMPLES]
    with torch.no_grad():
        if isinstance(problem, LinearProblem):
            matrix = problem.linearization.matrix()
        else:
            matrix = Linearization(replace(problem.detach(), last=None), solution.value.detach()).matrix()
        found = matrix.dense()[failed]
    found = found[found.isfinite().flatten(1).all(1)]
    return torch.linalg.svdvals(found.double()).min().item() if len(found) else None
