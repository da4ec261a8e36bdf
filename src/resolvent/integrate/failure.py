"""Failure of an integration: raise, warn or ignore."""

import warnings

from resolvent.errors import ConvergenceError, ConvergenceWarning
from resolvent.integrate.result import Integration
from resolvent.integrate.result import IntegrationStatus as Status

_POLICIES = ("raise", "warn", "ignore")

_ADVICE = {
    Status.MAX_STEPS: "more steps (max_steps=...), a looser rtol, or an implicit method for a stiff field "
    '(scheme=rs.schemes.tableaux.KVAERNO5, or "auto")',
    Status.STEP_TOO_SMALL: "a look at the solution there: it may grow beyond all bounds in finite time, or the field "
    "may jump (give its times by jumps=...); a looser rtol or a larger atol where components pass through zero",
    Status.NON_FINITE: "a look at the field: it returned NaN or infinity, however short the step; the solution may "
    "have left the region where the field is defined",
    Status.NOT_SOLVED: "a look at the field: its Jacobian may be wrong or the field not smooth; give the times of "
    "jumps by jumps=..., or take an explicit method if the field is not stiff",
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
    kinds = [Status(int(code)) for code in integration.status[failed].unique()]
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
