"""Equations w = b + tau F(w) with a known answer: how far any w is from a solution, or that there is none.

A class draws its coefficients in double precision and rounds them to the precision of the solve. Everything that is
said about a sample afterwards is computed in double precision from the rounded coefficients, so it is a fact about the
equation that the solver saw.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import resolvent as rs

DOUBLE, SINGLE, BRAIN, HALF = torch.float64, torch.float32, torch.bfloat16, torch.float16
PRECISIONS = (DOUBLE, SINGLE, BRAIN, HALF)
# The documented defaults of `Stopping`, written down again: the judge is not asked about itself.
RTOL = {DOUBLE: 1e-9, SINGLE: 1e-6, BRAIN: 2e-2, HALF: 2.5e-3}
ATOL = {DOUBLE: 1e-10, SINGLE: 1e-7, BRAIN: 1e-3, HALF: 1e-4}
DEFAULT = rs.Stopping()
# One unknown, few, both sides of the size at which the default solver changes its method, many.
DIMENSIONS = (1, 2, 3, 5, 8, 16, 32, 33, 40)


def rms(x: Tensor) -> Tensor:
    """The root mean square of each row. Rows are scaled first: squares of 1e200 overflow, those of 1e-200 vanish."""
    largest = x.abs().amax(1, keepdim=True)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return scale[:, 0] * (x / scale).square().mean(1).sqrt()


@dataclass(frozen=True)
class Samples:
    """Equations of one class, a row per sample.

    Attributes:
        function: F, called as function(w, *conditions).
        b, tau, conditions: (count, dim), (count,) and (count, ...), exact in the precision of the solve.
        distance: of w (count, dim) in float64 from the nearest solution, (count,), infinite where there is none; None
            where only the residual is known.
        w0: the first guess; None leaves it to the solver.
        stopping: the tolerances.
    """

    function: Callable[..., Tensor]
    b: Tensor
    tau: Tensor
    conditions: tuple[Tensor, ...] = ()
    distance: "Callable[[Samples, Tensor], Tensor] | None" = None
    w0: Tensor | None = None
    stopping: rs.Stopping = DEFAULT

    def to(self, dtype: torch.dtype) -> "Samples":
        conditions = tuple(c.to(dtype) for c in self.conditions)
        w0 = None if self.w0 is None else self.w0.to(dtype)
        return replace(self, b=self.b.to(dtype), tau=self.tau.to(dtype), conditions=conditions, w0=w0)

    @property
    def F(self) -> rs.Rowwise:
        return rs.Rowwise(self.function, *self.conditions)

    def defect(self, w: Tensor) -> Tensor:
        """b + tau F(w) - w; exact up to float64 rounding if self is in float64."""
        return self.b + self.tau[:, None] * self.F(w) - w


class Draw:
    """Random numbers in float64 for `count` samples with `dim` unknowns, to be rounded to `dtype`."""

    def __init__(self, generator: torch.Generator, count: int, dim: int, dtype: torch.dtype) -> None:
        self.generator, self.count, self.dim, self.dtype = generator, count, dim, dtype

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """(count, dim), or (count, *shape)."""
        shape = shape or (self.dim,)
        return low + (high - low) * torch.rand(self.count, *shape, generator=self.generator, dtype=DOUBLE)

    def powers(self, low: float, high: float, *shape: int) -> Tensor:
        """Numbers whose logarithms are uniform."""
        return torch.exp(self.uniform(math.log(low), math.log(high), *shape))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.count, *(shape or (self.dim,)), generator=self.generator, dtype=DOUBLE)

    def signs(self) -> Tensor:
        return torch.where(self.uniform(0, 1) < 0.5, -1.0, 1.0).to(DOUBLE)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return self.uniform(low, high + 1, *shape).floor()

    def orthogonal(self) -> Tensor:
        """(count, dim, dim)."""
        return torch.linalg.qr(self.normal(self.dim, self.dim))[0]

    def tau(self, low: float = 1.0, high: float = 1.0) -> Tensor:
        return self.uniform(low, high, 1)[:, 0]

    @property
    def identity(self) -> Tensor:
        return torch.eye(self.dim, dtype=DOUBLE).expand(self.count, -1, -1)


def product(w: Tensor, matrix: Tensor) -> Tensor:
    """matrix (count, m, n) times w (count, n), each row alone: its rounding does not depend on the batch."""
    return (matrix * w[:, None, :]).sum(-1)


def nowhere(samples: Samples, w: Tensor) -> Tensor:
    """The distance to the solution of an equation that has none."""
    return torch.full((len(w),), math.inf, dtype=DOUBLE)


def nearest(roots: Callable[..., Sequence[Tensor]]) -> Callable[[Samples, Tensor], Tensor]:
    """For an F of each unknown alone with known roots(b, tau, *conditions), NaN where one is missing."""

    def distance(samples: Samples, w: Tensor) -> Tensor:
        found = roots(samples.b, samples.tau[:, None], *samples.conditions)
        gaps = torch.stack([(w - root).abs().nan_to_num(nan=math.inf, posinf=math.inf) for root in found])
        return rms(gaps.amin(0))

    return distance


def linear(samples: Samples, w: Tensor) -> Tensor:
    """The distance to the solution of A w = b, A = I - tau M, or to the nearest of many; `conditions` starts with M."""
    matrix = torch.eye(w.shape[1], dtype=DOUBLE) - samples.tau[:, None, None] * samples.conditions[0]
    right = samples.b + samples.tau[:, None] * samples.F(torch.zeros_like(w))
    step, info = torch.linalg.solve_ex(matrix, (right - product(w, matrix))[:, :, None])
    distance = rms(step[:, :, 0])
    singular = (info != 0) | ~distance.isfinite()
    return torch.where(singular, _singular(matrix, right, w), distance)


def singular(samples: Samples, w: Tensor) -> Tensor:
    """The same where A is singular by construction, and elimination may end with a pivot that is not quite zero."""
    matrix = torch.eye(w.shape[1], dtype=DOUBLE) - samples.tau[:, None, None] * samples.conditions[0]
    return _singular(matrix, samples.b, w)


def _singular(matrix: Tensor, right: Tensor, w: Tensor) -> Tensor:
    inverse = torch.linalg.pinv(matrix, rtol=1e-11)
    outside = right - product(product(right, inverse), matrix)
    distance = rms(product(right - product(w, matrix), inverse))
    return torch.where(rms(outside) > 1e-7 * rms(right), math.inf, distance)


def lipschitz(modulus: float) -> Callable[[Samples, Tensor], Tensor]:
    """For |w - tau F(w) - (v - tau F(v))| >= modulus |w - v|, where the residual bounds the distance."""
    return lambda samples, w: rms(samples.defect(w)) / modulus


def bisect(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The root of an f that is negative at `low` and positive at `high`; NaN where it is not."""
    low, high = (x.to(DOUBLE) for x in torch.broadcast_tensors(low, high))
    bracketed = (f(low) <= 0) & (f(high) >= 0)
    for _ in range(200):
        middle = low + 0.5 * (high - low)
        below = f(middle) <= 0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(bracketed, low, math.nan)


@dataclass(frozen=True)
class Equations:
    """A class of equations.

    Attributes:
        name, kind: what it is.
        make: the samples of a `Draw`, in float64.
        solvable: the precisions in which the default solver has to solve all samples.
        precisions: those in which the class makes sense.
    """

    name: str
    kind: str
    make: Callable[[Draw], Samples]
    solvable: tuple[torch.dtype, ...] = ()
    precisions: tuple[torch.dtype, ...] = PRECISIONS
    dimensions: tuple[int, ...] = DIMENSIONS

    def draw(self, generator: torch.Generator, count: int, dim: int, dtype: torch.dtype) -> Samples:
        return self.make(Draw(generator, count, dim, dtype)).to(dtype)
