"""The fixed point with a fixed number of steps, accelerated by orthogonal directions.

The map g(w) of `Picard` has the residual f(w) = g(w) - w. Every step gives one more pair (df, dg), the changes of f and
g. Of each pair the part along the earlier df is subtracted, so that the df are orthogonal. The next iterate

    w <- g - sum_j gamma_j dg_j,   gamma_j = <f, df_j> / <df_j, df_j>,

then minimises |f - sum_j gamma_j df_j| with no system to solve. This is Anderson's method. On a linear problem it is
GCR, which is equivalent to GMRES until the oldest pair is dropped.

Reference: Eisenstat, Elman & Schultz, Variational iterative methods for nonsymmetric systems of linear equations,
SIAM J. Numer. Anal. 20, 1983.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from resolvent.equation.convergence import Convergence, Progress
from resolvent.equation.norms import dot, flat, length, per_sample, rms
from resolvent.equation.problem import Problem
from resolvent.equation.solver import State

MEMORY = 2
"""How many pairs are kept. More take memory, and hardly save a step."""


def least_part(dtype: torch.dtype) -> float:
    """A change whose square falls to less than this by the subtraction is not used: what is left is rounding."""
    return float(torch.finfo(dtype).eps ** 0.5)


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
        self._problem, self._convergence = problem, convergence
        self._progress: Progress | None = None
        self._last: tuple[Tensor, Tensor] | None = None
        # (batch, held, n) the orthogonal changes of f, and those of g; (batch, held) the inverse squares of the first.
        self._ring: tuple[Tensor, ...] | None = None

    def next(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        r = self._residual(w, y, tau)
        if self._progress is None:
            self._progress = self._convergence.first(self._problem, w, rms(r), length(self._problem.b))
        f = self._problem.precondition(r)
        g = w + f
        last, self._last = self._last, (f, g)
        if last is None:
            return g
        return self._accelerated(f, g, flat(f - last[0]), flat(g - last[1]))

    def end(self, w: Tensor, y: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        norm, progress = rms(self._residual(w, y, tau)), self._progress
        assert progress is not None
        self._convergence.update(self._problem, progress, State(w=w, norm=norm), progress.running, check=False)
        self._convergence.end(progress)
        return progress.status, norm

    def _residual(self, w: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
        b = self._problem.b
        return (b + tau * y if isinstance(tau, Tensor) else torch.add(b, y, alpha=tau)) - w

    def _accelerated(self, f: Tensor, g: Tensor, df: Tensor, dg: Tensor) -> Tensor:
        square, moved = dot(df, df), flat(g)
        ring = self._ring
        if ring is not None:
            if ring[0].shape[1] == MEMORY:
                ring = ring[0][:, 1:], ring[1][:, 1:], ring[2][:, 1:]
            products = ring[0] @ torch.stack([df, flat(f)], 2)
            along, gamma = (ring[2][:, :, None] * products).unbind(2)
            df = df - _sum(along, ring[0])
            moved = moved - _sum(gamma, ring[1])
            dg = dg - _sum(along, ring[1])
        left = dot(df, df)
        used = left > least_part(f.dtype) * square
        inverse = torch.where(used, 1 / left, 0.0)
        moved = moved - per_sample(inverse * dot(df, flat(f)), moved) * dg
        new = df[:, None], dg[:, None], inverse[:, None]
        self._ring = new if ring is None else tuple(torch.cat(pair, 1) for pair in zip(ring, new, strict=True))
        return moved.reshape(g.shape)


def _sum(weights: Tensor, rows: Tensor) -> Tensor:
    return (weights[:, None] @ rows).squeeze(1)
