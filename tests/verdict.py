"""Solutions judged anew, in double precision, from the returned values and the rounded coefficients alone."""

import torch
from torch import Tensor

import resolvent as rs
from equations import ATOL, DOUBLE, RTOL, Samples, product, rms

# A residual within so many tolerances at the scale of the equation itself, of b and the first residual, is evidence.
EARNED = 10.0
# One that is small beside abs(w) alone is none: then a solution has to be nearer to the value than zero is.
NEAR = 1.0


class Verdict:
    """What is false in a solution.

    Attributes:
        status: (batch,), the codes.
        converged: (batch,), which samples claim to have converged.
        residual: of the returned values, in float64.
        tolerance: the documented one, for these values.
        rounding: what the solver may have seen it wrong by.
        distance: of the values from the nearest solution.
        excess: the residual in units of the tolerance at the scale of the equation.
    """

    def __init__(self, samples: Samples, solution: rs.Solution, backward: bool = False) -> None:
        exact, value = samples.to(DOUBLE), solution.value.detach().to(DOUBLE)
        self.b, self.value, self.steps = exact.b, value, solution.steps
        self.status = solution.status
        self.converged = solution.status == rs.Status.CONVERGED
        self.residual, self.reported = rms(exact.defect(value)), solution.residual.to(DOUBLE)
        self.tolerance = tolerance(samples, torch.maximum(rms(exact.b), rms(value)))
        if backward:
            self.tolerance = torch.maximum(self.tolerance, _backward_error(samples, value))
        self.rounding = _rounding(samples, exact, solution.value.detach())
        self.distance = torch.zeros_like(self.residual) if exact.distance is None else exact.distance(exact, value)
        # Far out, float64 may not see b: what it might have missed counts against the claim.
        most = self.residual + torch.finfo(DOUBLE).eps * _terms(exact, value)
        self.excess = most / tolerance(samples, natural_scale(exact))

    def faults(self) -> dict[str, Tensor]:
        """The indices of the samples with a false claim, by its first reason, or with a false residual."""
        reported = (self.reported - self.residual).abs() <= self.rounding + 1e-6 * self.residual
        finite = self.residual.isfinite() & self.reported.isfinite()
        near = self.distance <= NEAR * rms(self.value)
        claims = {
            "not finite": ~self.value.isfinite().all(1),
            "residual above its tolerance": ~(self.residual <= self.tolerance + self.rounding),
            "no solution": (self.distance == torch.inf) & ~(self.excess <= 1),
            "far from every solution": ~(self.excess <= EARNED) & ~near,
        }
        found, left = {"residual not that of the value": finite & ~reported}, self.converged
        for reason, holds in claims.items():
            found[reason], left = left & holds, left & ~holds
        return {reason: rows.nonzero()[:, 0] for reason, rows in found.items() if rows.any()}

    def describe(self, index: int) -> str:
        def shown(x: Tensor) -> str:
            numbers = [f"{v:.6g}" for v in x[index].flatten().tolist()]
            return " ".join(numbers[:6]) + (f" ... ({len(numbers)} unknowns)" if len(numbers) > 6 else "")

        return (
            f"sample {index}: b = {shown(self.b)}; value = {shown(self.value)}; residual {shown(self.residual)}, "
            f"reported {shown(self.reported)}, tolerance {shown(self.tolerance)}, rounding {shown(self.rounding)}, "
            f"distance from a solution {shown(self.distance)}, {shown(self.steps)} steps"
        )


def tolerance(samples: Samples, scale: Tensor) -> Tensor:
    """atol + rtol * scale, as it is documented for the precision of the samples."""
    dtype, stopping = samples.b.dtype, samples.stopping
    return (ATOL[dtype] if stopping.atol is None else stopping.atol) + RTOL[dtype] * scale


def _backward_error(samples: Samples, u: Tensor) -> Tensor:
    """Four roundings of |A| |u| + |g|, A = I - tau M: no method makes the residual of a linear system smaller."""
    exact = samples.to(DOUBLE)
    A = torch.eye(u.shape[1], dtype=DOUBLE) - exact.tau[:, None, None] * exact.conditions[0]
    size = torch.linalg.matrix_norm(A, 2) * rms(u) + rms(exact.b)
    return 4 * torch.finfo(samples.b.dtype).eps * size


def natural_scale(exact: Samples) -> Tensor:
    """The size of what the equation brings along: b, the first guess and the first residual."""
    first = exact.b if exact.w0 is None else exact.w0
    return torch.stack([rms(exact.b), rms(first), rms(exact.defect(first))]).amax(0)


def _terms(exact: Samples, w: Tensor) -> Tensor:
    """The size of what is added up in b + tau F(w) - w."""
    tau = exact.tau[:, None]
    image = product(w.abs(), exact.conditions[0].abs()) if exact.function is product else exact.F(w)
    return rms(exact.b) + rms(tau * image) + rms(w)


def _rounding(samples: Samples, exact: Samples, value: Tensor) -> Tensor:
    """How far the residual in the precision of the solve may be from the one in float64, at the same value.

    The solver keeps w in at least single precision; F sees it rounded to the precision of b, and so is the value that
    is returned. That moves w alone, by half an epsilon. F was evaluated at this very value, so its rounding is measured
    here; twice, because a vectorised function may differ in the last place with the row's position in the batch. The
    sums round once each, in the working precision.
    """
    w, tau, dtype = value.to(DOUBLE), exact.tau[:, None], torch.finfo(value.dtype)
    error = rms(tau * (samples.F(value).to(DOUBLE) - exact.F(w)))
    working = torch.promote_types(value.dtype, torch.float32)
    returned = 0.0 if value.dtype == working else dtype.eps / 2 * rms(w).clamp_min(dtype.smallest_normal)
    return 2 * error + returned + torch.finfo(working).eps * _terms(exact, w)
