"""Errors and warnings of the library."""

from typing import Any


class ResolventError(RuntimeError):
    """Base of all errors that a solve raises. A wrong argument raises a plain `ValueError` instead."""


class ConvergenceError(ResolventError):
    """A solve did not reach its tolerance for some samples.

    `solution` is the unfinished `Solution`, with the status and residual of every sample.
    """

    def __init__(self, message: str, solution: Any) -> None:
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> tuple[Any, ...]:
        # An error that cannot be pickled kills a process pool. The solution may contain functions, so it is dropped.
        return type(self), (str(self), None)


class ConvergenceWarning(UserWarning):
    """The warning of `on_failure="warn"`, in place of a `ConvergenceError`."""


class DerivativeOrderError(ResolventError):
    """A derivative of higher order than the adjoint prepared was requested."""


class ReconstructionError(ResolventError):
    """The states of a pass could not be recovered from its end accurately enough to differentiate it."""
