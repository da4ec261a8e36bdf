"""The fixed point with a fixed number of steps, every one of them accelerated by the last changes.

The map g(w) of `Picard` has the residual f(w) = g(w) - w. Every step gives one more pair (df, dg), the changes of f and
g, and the next iterate is

    w <- g - sum_j gamma_j dg_j   with the gamma that minimises |f - sum_j gamma_j df_j|.

This is Anderson's method. On a linear problem it is equivalent to GMRES until the oldest pair is dropped.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence, Progress
from resolvent.equation.norms import length, rms
from resolvent.equation.problem import Problem
from resolvent.equation.secants import Secants
from resolvent.equation.solver import State

MEMORY = 2
"""How many pairs are kept, as in `Secants`. More take memory, and hardly save a step."""


class Directions(ABC):
    """The steps of one solve of w = b + tau y(w), where y is F, or a product with its derivative."""

    @abstractmethod
    def next(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        """The next iterate, from y(w)."""

    @abstractmethod
    def end(self, w: Tensor, y: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        """The status and the residual of every sample at the last iterate, (batch,) each."""


class PlainDirections(Directions):
    """The steps by operations of torch, on any device and in `torch.func` transforms."""

    def __init__(self, problem: Problem, convergence: Convergence) -> None:
        self._problem, self._convergence, self._secants = problem, convergence, Secants()
        self._progress: Progress | None = None

    def next(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        r = self._residual(w, y, tau)
        if self._progress is None:
            self._progress = self._convergence.first(self._problem, w, rms(r), length(self._problem.b))
        f = self._problem.precondition(r)
        return self._secants.next(f, w + f)

    def end(self, w: Tensor, y: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        norm, progress = rms(self._residual(w, y, tau)), self._progress
        assert progress is not None
        self._convergence.update(self._problem, progress, State(w=w, norm=norm), progress.running, check=False)
        self._convergence.end(progress)
        return progress.status, norm

    def _residual(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        b = self._problem.b
        return (b + tau * y if isinstance(tau, Tensor) else torch.add(b, y, alpha=tau)) - w
