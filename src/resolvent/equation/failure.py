"""Failure policies: raise, warn, ignore, mask or defer."""

import warnings
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resolvent.equation.cause import cause_of, is_singular
from resolvent.equation.linear import LinearProblem
from resolvent.equation.norms import per_sample
from resolvent.equation.place import Place
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solution import Solution, Status
from resolvent.equation.torch_func import any_true, whole
from resolvent.errors import ConvergenceError, ConvergenceWarning

POLICIES = ("raise", "warn", "ignore", "mask")
_DIAGNOSE = "rs.analysis.diagnose(block, x) shows how close each layer is to its pole, and what to change."
# The most sample numbers listed in a message.
_NAMED = 8

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


@dataclass(eq=False)
class Mask:
    """The policy `on_failure="mask"`: failed samples keep their best iterate and get no gradient.

    Training can then continue if a few equations have no solution. The values of failed samples are not what the layer
    defines, so failures are counted. More than the fraction `most` of all samples in the last `over` solves raises. A
    sample for which F is not finite raises at once.

    Arguments:
        most: the largest fraction of failures.
        over: the number of recent solves that are counted. Nothing is judged before that many.

    Attributes:
        failed, seen: failed samples, and all samples, since the object was made. The solve of each layer counts.
    """

    most: float = 0.05
    over: int = 500
    failed: int = field(default=0, init=False)
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.most <= 1:
            raise ValueError(f"most is a fraction of the samples, from 0 to 1, got {self.most!r}.")
        if not isinstance(self.over, int) or self.over < 1:
            raise ValueError(f"over counts solves and must be 1 or more, got {self.over!r}.")
        self._recent: deque[tuple[int, int]] = deque(maxlen=self.over)

    def count(self, solution: Solution) -> bool:
        """Counts the samples of a solve. Returns whether too many of the recent ones failed."""
        seen = solution.status.numel()
        self._add(0 if solution.all_converged else seen - int(solution.converged.sum()), seen)
        recent = [sum(column) for column in zip(*self._recent, strict=True)]
        return len(self._recent) == self.over and recent[0] > self.most * recent[1]

    def count_converged(self, samples: int) -> None:
        """Counts the samples of a solve whose failures are counted elsewhere."""
        self._add(0, samples)

    def _add(self, failed: int, seen: int) -> None:
        self.failed, self.seen = self.failed + failed, self.seen + seen
        self._recent.append((failed, seen))

    def __repr__(self) -> str:
        return f"Mask(most={self.most}, over={self.over}): {self.failed} of {self.seen} samples failed"


@dataclass(eq=False)
class Defer:
    """A policy that keeps the first error, to be raised later by whoever set it; samples keep their best iterate.

    Attributes:
        error: the first error, or None.
    """

    error: ConvergenceError | None = None


Policy = str | Mask | Defer


def as_policy(on_failure: Policy) -> Policy:
    """The policy, checked; "mask" becomes a `Mask()`, which counts."""
    if isinstance(on_failure, Mask | Defer):
        return on_failure
    if on_failure not in POLICIES:
        raise ValueError(f"on_failure must be one of {POLICIES} or an rs.Mask(...), got {on_failure!r}.")
    return Mask() if on_failure == "mask" else on_failure


def masked(value: Tensor, solution: Solution, on_failure: Policy) -> Tensor:
    """The value; under a `Mask`, failed samples have no gradient."""
    if not isinstance(on_failure, Mask) or solution.all_converged:
        return value
    return torch.where(per_sample(solution.converged, value), value, value.detach())


def report(
    problem: NonlinearProblem | LinearProblem,
    solution: Solution,
    on_failure: Policy,
    place: Place | None = None,
    w0: Tensor | None = None,
) -> None:
    """Applies the policy to the samples that did not converge. Input that is not finite raises under every policy.

    Arguments:
        problem, solution: the equation and its result.
        on_failure: the policy.
        place: where the equation stands in a network, for the message.
        w0: the first guess, if it was given.
    """
    too_many = isinstance(on_failure, Mask) and on_failure.count(solution)
    if solution.all_converged and not too_many:
        return
    if isinstance(problem, NonlinearProblem):
        _refuse_non_finite(problem, place, w0)
    if on_failure == "ignore":
        return
    if isinstance(on_failure, Mask):
        undefined = any_true(solution.status == Status.NON_FINITE)
        if not (undefined or too_many):
            return
        message = describe(solution, problem, place)
        raise ConvergenceError(f"{message}\n{on_failure}." if too_many else message, solution)
    message = describe(solution, problem, place)
    if isinstance(on_failure, Defer):
        on_failure.error = on_failure.error or ConvergenceError(message, solution)
        return
    if on_failure == "raise":
        raise ConvergenceError(message, solution)
    warnings.warn(message, ConvergenceWarning, stacklevel=3)


def _refuse_non_finite(problem: NonlinearProblem, place: Place | None, w0: Tensor | None) -> None:
    # Checked only after a failure: input that is not finite fails at its first residual.
    for name, value in (("b" if place is None else "the state", problem.b), ("tau", problem.tau), ("w0", w0)):
        if isinstance(value, Tensor) and any_true(~value.detach().isfinite()):
            # The layers of a group, and the stages of a step, have one state.
            rows = problem.function.mix is not None and value is not problem.tau
            # Some schemes add slopes to the state before they solve.
            look = ": look at the input of the block, and at F there" if value is problem.b else ""
            where = "" if place is None else f", at the start of {place}{look}"
            raise ValueError(f"{name} must be finite, but {_not_finite(value.detach(), rows, place)}{where}.")


def _not_finite(value: Tensor, rows: bool, place: Place | None) -> str:
    """How many entries are not finite, and the first sample that has some. With `rows`, (batch, rows, *shape), an entry
    counts once for all rows."""
    bad = ~whole(value).isfinite()
    bad = bad.flatten(0, bad.dim() - value.dim()) if value.dim() > 0 else bad  # Copies of a vmapped function.
    bad = bad.any(1) if rows else bad
    count = int(bad.sum())
    message = f"{count} of its {bad.numel()} entries {'is' if count == 1 else 'are'} NaN or infinite"
    if value.dim() == 0:
        return message
    first = bad.reshape(len(bad), -1).any(1).nonzero()[:1, 0]
    return f"{message}, the first in sample {_in_batch(first, place)[0]}"


def describe(solution: Solution, problem: NonlinearProblem | LinearProblem, place: Place | None = None) -> str:
    """The message: how many samples failed, how and where, the worst residual, the cause, and what to try."""
    status, residual = whole(solution.status).flatten(), whole(solution.residual).flatten()
    failed = status != Status.CONVERGED
    what = "The backward solve A^T u = g" if problem.linear else "The solve of w = b + tau F(w)"
    where = "" if place is None else f" in {place}"
    names = " then ".join(type(solver).__name__ for solver in solution.solvers)
    batch = status.numel() if place is None or place.part is None else place.part.batch
    lines = [f"{what}{where} did not converge for {int(failed.sum())} of {batch} samples"]
    if bool(failed.any()):
        kinds = [(Status(int(code)), int((status == code).sum())) for code in status[failed].unique()]
        worst = torch.nan_to_num(residual[failed], nan=torch.inf).max().item()
        counts = ", ".join(f"{count} {kind.meaning}" for kind, count in kinds)
        lines[0] += (
            f" ({counts}; {_numbers(failed, place)}) with {names}; worst residual {worst:.1e} (root mean square)."
        )
        lines += _explanation(problem, solution, failed, kinds)
    keep = "ImplicitAdjoint(on_failure=...)" if problem.linear else 'on_failure="mask", "warn" or "ignore"'
    lines.append(f"To keep the best iterate all the same: {keep}; the statuses are in the solution.")
    return "\n".join(lines)


def _explanation(
    problem: NonlinearProblem | LinearProblem, solution: Solution, failed: Tensor, kinds: list[tuple[Status, int]]
) -> list[str]:
    """The cause, if it was found; what to try, if it was not or only one solver ran."""
    lines = []
    cause = cause_of(problem, solution.value, failed) if isinstance(problem, NonlinearProblem) else None
    if cause is not None:
        lines += [
            f"The cause: {cause}",
            f"What to change: {cause.advice}",
            _DIAGNOSE,
        ]
    elif isinstance(problem, LinearProblem) and is_singular(problem, failed):
        lines += ["The cause: I - tau F' is nearly singular: the layer is at a pole.", _DIAGNOSE]
    if cause is None or len(solution.solvers) == 1:
        lines += ["What to try:", *(f"  - {kind.meaning}: {_ADVICE[kind]}" for kind, _ in kinds)]
    return lines


def _numbers(failed: Tensor, place: Place | None) -> str:
    """The numbers of the failed samples."""
    numbers = _in_batch(failed.nonzero().flatten(), place)
    some = ", ".join(map(str, numbers[:_NAMED]))
    return f"sample{'s' * (len(numbers) > 1)} {some}{', ...' * (len(numbers) > _NAMED)}"


def _in_batch(rows: Tensor, place: Place | None) -> list[int]:
    """The numbers in the user's batch of the samples `rows`."""
    part = None if place is None else place.part
    numbers: list[int] = (rows if part is None else part.samples[rows]).tolist()
    return numbers
