"""`Integration`, the result of `odeint`, the status of its samples, and the report of failures."""

import warnings
from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor
from torch.utils._pytree import tree_map

from resolvent.errors import ConvergenceError, ConvergenceWarning


class IntegrationStatus(IntEnum):
    """How the integration of one sample ended."""

    RUNNING = 0
    DONE = 1
    MAX_STEPS = 2
    STEP_TOO_SMALL = 3
    NON_FINITE = 4
    NOT_SOLVED = 5
    STOPPED = 6

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    IntegrationStatus.RUNNING: "not finished",
    IntegrationStatus.DONE: "reached the last time",
    IntegrationStatus.MAX_STEPS: "ran out of steps",
    IntegrationStatus.STEP_TOO_SMALL: "needed too small a step",
    IntegrationStatus.NON_FINITE: "met a value that is not finite",
    IntegrationStatus.NOT_SOLVED: "could not solve for a stage",
    IntegrationStatus.STOPPED: "stopped at an event",
}


@dataclass(frozen=True)
class Integration:
    """The result of `rs.odeint`, per sample.

    Attributes:
        times: (count,) or (count, batch), as given.
        states: (count, batch, *shape), differentiable, in the structure of y0; NaN at times that a sample did not
            reach.
        status: (batch,), `IntegrationStatus` codes.
        accepted, rejected: (batch,), numbers of steps.
        reached: (batch,), the last time that was reached, in float64; if an event stopped the sample, the time of the
            event, differentiable.
        final: (batch, *shape), the state at that time, differentiable.
        evaluations: the number of calls of the field, each for any number of samples, without the backward pass.
    """

    times: Tensor
    states: Tensor
    status: Tensor
    accepted: Tensor
    rejected: Tensor
    reached: Tensor
    final: Tensor
    evaluations: int = field(default=0)

    @property
    def done(self) -> Tensor:
        """(batch,), whether a sample reached its last time, or stopped at an event."""
        return (self.status == IntegrationStatus.DONE) | (self.status == IntegrationStatus.STOPPED)

    def __repr__(self) -> str:
        most = int((self.accepted + self.rejected).max()) if self.accepted.numel() else 0
        shape = tree_map(lambda part: tuple(part.shape), self.states)
        return (
            f"Integration({shape}: {int(self.done.sum())} of {self.status.numel()} done, "
            f"at most {most} steps, {self.evaluations} evaluations)"
        )


_POLICIES = ("raise", "warn", "ignore")

_ADVICE = {
    IntegrationStatus.MAX_STEPS: (
        "more steps (max_steps=...), a looser rtol, or an implicit method for a stiff field "
        '(scheme=rs.schemes.tableaux.KVAERNO5, or "auto")'
    ),
    IntegrationStatus.STEP_TOO_SMALL: (
        "a look at the solution there: it may grow beyond all bounds in finite time, or the field may jump (give its "
        "times by jumps=...); a looser rtol or a larger atol where components pass through zero"
    ),
    IntegrationStatus.NON_FINITE: (
        "a look at the field: it returned NaN or infinity, however short the step; the solution may have left the "
        "region where the field is defined"
    ),
    IntegrationStatus.NOT_SOLVED: (
        "a look at the field: its Jacobian may be wrong or the field not smooth; give the times of jumps by "
        "jumps=..., or take an explicit method if the field is not stiff"
    ),
}


def check_policy(on_failure: object) -> None:
    if on_failure not in _POLICIES:
        raise ValueError(f"on_failure must be one of {_POLICIES}, got {on_failure!r}.")


def report(integration: Integration, on_failure: str) -> None:
    """Applies the policy to the samples that did not reach their last time."""
    if on_failure == "ignore" or bool(integration.done.all()):
        return
    message = describe(integration)
    if on_failure == "raise":
        raise ConvergenceError(message, integration)
    warnings.warn(message, ConvergenceWarning, stacklevel=3)


def describe(integration: Integration) -> str:
    """The message: how many samples failed, how, the times they reached, and what to try."""
    failed = ~integration.done
    kinds = [IntegrationStatus(int(code)) for code in integration.status[failed].unique()]
    counts = ", ".join(f"{int((integration.status == kind).sum())} {kind.meaning}" for kind in kinds)
    reached = integration.reached[failed]
    far = (
        f"t = {reached.min():.6g}"
        if reached.min() == reached.max()
        else f"t = {reached.min():.6g} to {reached.max():.6g}"
    )
    lines = [
        f"The integration failed for {int(failed.sum())} of {failed.numel()} samples ({counts}), at {far}. What to try:"
    ]
    lines += [f"  - {kind.meaning}: {_ADVICE[kind]}" for kind in kinds]
    lines.append(
        'To keep what was reached all the same: on_failure="warn" or "ignore"; states at later times are NaN, and the '
        "statuses are in the result."
    )
    return "\n".join(lines)
