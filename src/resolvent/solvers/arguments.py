"""The checks of solver, stopping, adjoint and on_failure, which `resolve` and the blocks have in common."""

from typing import TypeVar

from resolvent.core.adjoint import Adjoint
from resolvent.core.failure import POLICIES
from resolvent.core.solver import Solver
from resolvent.core.stopping import Stopping
from resolvent.solvers.linear import LinearSolver, refuse_linear

T = TypeVar("T")
D = TypeVar("D")


def expect(value: T | None, kind: type[T], default: D, name: str, example: str) -> T | D:
    """The value if it is of its kind, the default if it is None."""
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be an object such as {example}, or None, got {value!r}.")
    return value


def check_solving(solver: Solver | None, stopping: Stopping | None, adjoint: Adjoint | None, on_failure: str) -> None:
    """Raises where one of the arguments is of the wrong kind, or where two of them contradict each other."""
    expect(solver, Solver, None, "solver", "rs.Newton()")
    expect(stopping, Stopping, None, "stopping", "rs.Stopping(rtol=1e-6)")
    expect(adjoint, Adjoint, None, "adjoint", "rs.ImplicitAdjoint()")
    if isinstance(solver, LinearSolver):
        refuse_linear(solver)
    if on_failure not in POLICIES:
        raise ValueError(f"on_failure must be one of {POLICIES}, got {on_failure!r}.")
    if stopping is not None and stopping.blind and on_failure != "ignore":
        raise ValueError(
            f"Stopping(check_every=0) never looks whether samples have converged, and cannot {on_failure}: take "
            'on_failure="ignore", and read the status of the solution.'
        )
