"""What happens when a solve does not converge: it raises, warns, or, when told to, keeps still."""

import warnings

import torch
from torch import Tensor

from resolvent.core.problem import Problem
from resolvent.core.solution import Solution, Status
from resolvent.core.transforms import any_true, whole
from resolvent.errors import ConvergenceError, ConvergenceWarning

POLICIES = ("raise", "warn", "ignore")

_ADVICE = {
    Status.MAX_STEPS: "more steps (Stopping(max_steps=...)), a faster solver (Newton for few unknowns, Anderson or "
    "NewtonKrylov for many), or a better first guess w0",
    Status.STALLED: "a tolerance above the rounding of F (Stopping(rtol=...), or float64), or another solver: a "
    "minimum of the residual that is not a root stops every descent method",
    Status.DIVERGED: "a solver that does not rely on contraction (Newton, NewtonKrylov), a smaller tau, or a field "
    "whose spectrum is bounded: a fixed point contracts only where tau * Lip(F) < 1, or where the field declares its "
    "linear part",
    Status.NON_FINITE: "a look at F: it returned NaN or infinity at a finite argument; a smaller tau or a bounded "
    "field keeps the iterates where F is defined",
    Status.BREAKDOWN: "a smaller tau: I - tau F'(w) is singular, or nearly so, which is a pole of the layer; a field "
    "with tau * (largest real part of its spectrum) < 1 has none",
}


def report(
    problem: Problem, solution: Solution, on_failure: str, w0: Tensor | None = None, backward: bool = False
) -> None:
    """Applies the policy to the samples that did not converge. Input that is not finite is an error under each."""
    if solution.settled:
        return
    if not backward:
        _refuse_non_finite(b=problem.b, tau=problem.tau, w0=w0)
    if on_failure == "raise":
        raise ConvergenceError(describe(solution, backward), solution)
    if on_failure == "warn":
        warnings.warn(describe(solution, backward), ConvergenceWarning, stacklevel=3)


def _refuse_non_finite(**inputs: float | Tensor | None) -> None:
    # Looked for only now: what is not finite fails at its first residual, and what converged needs no check.
    for name, value in inputs.items():
        if isinstance(value, Tensor) and any_true(~value.detach().isfinite()):
            count = int((~whole(value.detach()).isfinite()).sum())
            raise ValueError(f"{name} must be finite, but {count} of its {value.numel()} entries are NaN or infinite.")


def describe(solution: Solution, backward: bool = False) -> str:
    """How many samples failed and how, the worst residual, and what to try."""
    status, residual = whole(solution.status).flatten(), whole(solution.residual).flatten()
    failed = status != Status.CONVERGED
    kinds = [(Status(int(code)), int((status == code).sum())) for code in status[failed].unique()]
    worst = torch.nan_to_num(residual[failed], nan=torch.inf).max().item()
    names = " then ".join(type(solver).__name__ for solver in solution.solvers)
    what = "The backward solve A^T u = g" if backward else "The solve of w = b + tau F(w)"
    counts = ", ".join(f"{count} {kind.meaning}" for kind, count in kinds)
    lines = [
        f"{what} did not converge for {int(failed.sum())} of {status.numel()} samples ({counts}) with {names}; "
        f"worst residual {worst:.1e} (root mean square of a sample). What to try:"
    ]
    lines += [f"  - {kind.meaning}: {_ADVICE[kind]}" for kind, _ in kinds]
    where = "ImplicitAdjoint(on_failure=...)" if backward else 'on_failure="warn" or "ignore"'
    lines.append(f"To keep the best iterate all the same: {where}; the statuses are in the solution.")
    return "\n".join(lines)
