"""The cause of a failed solve, for its message."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization, evaluate_with_matrix
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.torch_func import transforming

# The most unknowns for which matrices are computed for a message, and the most samples that are examined.
MOST_UNKNOWNS, MOST_SAMPLES = 64, 16
# I - tau F' is nearly singular if its smallest singular value is below this.
_NEARLY_SINGULAR = 1e-2
# A solution diverges if it exceeds the size of b plus that of tau F(b) by this factor.
_FAR = 10.0
# Rounding leaves a residual of about this many roundings of the terms of an equation.
_ROUNDINGS = 4.0
# The number of tau values at which the branch is followed, Newton steps at each, and their relative tolerance.
_FRACTIONS, _CORRECTIONS, _ON_BRANCH = 64, 4, 1e-3


@dataclass(frozen=True)
class Cause:
    """Why a sample could not be solved.

    Attributes:
        smallest: the smallest singular value of A = I - tau F' at the best iterate.
        slope: the largest real part in the spectrum of tau F' there. If it is below 1 everywhere, a solution exists.
        reached: the fraction of tau up to which the solution that starts at b can be followed; 1 if it does not end.
        far: whether that solution diverges there.
        reachable: the relative tolerance that rounding allows, a power of ten; None if more than rounding is left.
    """

    smallest: float
    slope: float
    reached: float
    far: bool
    reachable: float | None = None

    def __str__(self) -> str:
        if self.reachable is not None:
            return (
                "rounding: tau F(w) changes so much faster than w that its rounding exceeds the tolerance, and no "
                "iterate is better."
            )
        facts = (
            f"the smallest singular value of I - tau F' is {self.smallest:.1e}, so that |R| = {self.growth:.1e} for a "
            f"change of b, and the largest real part in the spectrum of tau F' is {self.slope:.2g}"
        )
        if self.far:
            return (
                f"near a pole: the solution that starts at b for tau = 0 runs away at {self.reached:.0%} of tau, where "
                f"I - tau F' is singular; at the best iterate {facts}."
            )
        if self.reached < 1:
            return (
                f"behind a fold: the solution that starts at b for tau = 0 ends at {self.reached:.0%} of tau, where "
                f"I - tau F' becomes singular, and none was found beyond; at the best iterate {facts}."
            )
        if self.smallest < _NEARLY_SINGULAR:
            return f"near a pole, where I - tau F' is singular; at the best iterate {facts}."
        return f"no solution was found near b; at the best iterate {facts}."

    @property
    def growth(self) -> float:
        """|R|, the largest factor by which the resolvent enlarges a small change of b, at the best iterate."""
        return 1 / self.smallest if self.smallest > 0 else math.inf

    @property
    def advice(self) -> str:
        if self.reachable is not None:
            return f"float64, or a tolerance within reach, rs.Stopping(rtol={self.reachable:.0e})."
        harmless = self.slope < 1 and self.smallest >= _NEARLY_SINGULAR
        if harmless and not self.far and self.reached >= 1:
            return "a looser tolerance, float64, or a look at F: it may be discontinuous."
        return (
            "less tau: more layers over the same horizon, or a shorter horizon; or a field whose slopes stay below "
            "1 / tau: the penalty rs.regularizers.Solvability in training, or rs.fields.OneSided."
        )


@torch.no_grad()
def cause_of(problem: NonlinearProblem, value: Tensor, failed: Tensor) -> Cause | None:
    """The cause for the worst of the first failed samples; None if it would take too long to find.

    Arguments:
        problem: the equation.
        value: (batch, *shape), the best iterates.
        failed: (batch,).
    """
    rows = failed.nonzero().squeeze(1)[:MOST_SAMPLES]
    if transforming() or problem.size > MOST_UNKNOWNS or len(rows) == 0:
        return None
    problem = replace(problem.detach(), last=None)
    value = value.detach()
    matrices = Linearization(problem, value).matrix().dense()[rows].double()
    finite = matrices.isfinite().flatten(1).all(1)
    if not bool(finite.any()):
        return None
    reachable = _reachable(problem, value, rows, matrices)
    reached, far = (found[rows][finite] for found in _follow(problem))
    matrices = matrices[finite]
    smallest = torch.linalg.svdvals(matrices)[:, -1]
    slopes = 1 - torch.linalg.eigvals(matrices).real.amin(1)
    worst = int(smallest.argmin())
    return Cause(float(smallest[worst]), float(slopes[worst]), float(reached[worst]), bool(far[worst]), reachable)


def _reachable(problem: NonlinearProblem, value: Tensor, rows: Tensor, matrices: Tensor) -> float | None:
    """The relative tolerance that the samples `rows` reach, if their residuals are the rounding of the terms,
    eps (|A| |w| + |b|)."""
    residual, size, scale = (rms(x)[rows].double() for x in (problem.defect(value), value, problem.b))
    terms = torch.linalg.matrix_norm(matrices) * size + scale
    rounding = _ROUNDINGS * torch.finfo(problem.precision).eps * terms
    if not bool((residual <= rounding).all()):
        return None
    # What rounding may leave, rather than what it has left here: other samples have less luck.
    return 10.0 ** math.ceil(math.log10(float((rounding / torch.maximum(size, scale)).max())))


@torch.no_grad()
def is_singular(system: LinearProblem, failed: Tensor) -> bool:
    """Whether A is nearly singular for one of the first failed samples; False if the test would take too long."""
    if transforming() or system.size > MOST_UNKNOWNS:
        return False
    found = system.linearization.matrix().dense()[failed.nonzero().squeeze(1)[:MOST_SAMPLES]]
    found = found[found.isfinite().flatten(1).all(1)].double()
    return len(found) > 0 and torch.linalg.svdvals(found).min().item() < _NEARLY_SINGULAR


def _follow(problem: NonlinearProblem) -> tuple[Tensor, Tensor]:
    """Follows the solution from w = b at tau = 0 by Newton's method. Returns the fraction of tau it reaches and whether
    it diverges there, both (batch,)."""
    w, reached = problem.b, torch.zeros_like(rms(problem.b))
    home = rms(w) + rms(problem.defect(w))
    alive = torch.ones_like(reached, dtype=torch.bool)
    for step in range(1, _FRACTIONS + 1):
        part = replace(problem, tau=problem.tau * (step / _FRACTIONS))
        start = w
        for _ in range(_CORRECTIONS):
            image, matrix = evaluate_with_matrix(part, w)
            d, usable = matrix.solve(part.step_of(image) - w)
            w = torch.where(per_sample(usable & d.flatten(1).isfinite().all(1), w), w + d, w)
        image, matrix = evaluate_with_matrix(part, w)
        close = rms(part.step_of(image) - w) <= _ON_BRANCH * (rms(part.b) + rms(w))
        alive = alive & close & (torch.linalg.det(matrix.dense()) > 0)
        reached = torch.where(alive, step / _FRACTIONS, reached)
        w = torch.where(per_sample(alive, w), w, start)
        if not bool(alive.any()):
            break
    return reached, rms(w) > _FAR * home
