"""What can go wrong, by name."""

from typing import Any


class ResolventError(RuntimeError):
    """Base of every error that a solve can end in. A wrong argument is a plain `ValueError` instead."""


class ConvergenceError(ResolventError):
    """A solve did not reach its tolerance for some samples.

    `solution` is the `Solution` as far as it got, with the status and residual of every sample.
    """

    def __init__(self, message: str, solution: Any) -> None:
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> tuple[Any, ...]:
        # An error that a worker process cannot hand over kills the pool. The solution may hold functions: it stays.
        return type(self), (str(self), None)


class ConvergenceWarning(UserWarning):
    """The warning that `on_failure="warn"` gives in place of a `ConvergenceError`."""


class DerivativeOrderError(ResolventError):
    """A derivative of higher order was asked for than the adjoint had prepared."""
