"""Step control: tolerances per component, the first step, and the size of the next one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.integrate.flow import Flow

SAFETY = 0.9
_LEAST, _MOST = 0.2, 10.0
# A step that could grow by at most this factor keeps its size, which saves a factorization.
_KEEP = 1.2


@dataclass(frozen=True)
class Tolerance:
    """The weighted norm of an error e of a state y is the largest |e_i| / (atol_i + rtol |y_i|); 1 is the tolerance.

    Attributes:
        rtol: a number.
        atol: a number, or (n,) for the components of a sample.
    """

    rtol: float
    atol: float | Tensor

    def scale(self, y: Tensor) -> Tensor:
        return self.atol + self.rtol * y.abs()

    def norm(self, e: Tensor, scale: Tensor) -> Tensor:
        """(batch, n) to (batch,)."""
        return (e / scale).abs().amax(1)

    def newton(self, dtype: torch.dtype) -> float:
        """The largest error of a stage, in the weighted norm, that does not disturb the error estimate.

        Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.8. Their norm is a mean; for
        the largest component the factor 10 leads to the same errors with fewer iterations.
        """
        return max(10 * torch.finfo(dtype).eps / self.rtol, min(0.03, 10 * self.rtol**0.5))


@dataclass(frozen=True)
class Controller:
    """A proportional-integral controller: the next step is h * 0.9 err^(-0.85/q) before^(0.2/q), within limits, where
    err is the error of this step and before that of the previous one.

    Attributes:
        error_order: q, the power of h that the estimate is proportional to.
        lazy: whether small increases are skipped, for methods that would need a new factorization.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.2.
    """

    error_order: int
    lazy: bool

    def accepted(self, h: Tensor, error: Tensor, before: Tensor, rejected: Tensor) -> Tensor:
        """The next step after an accepted one; it does not grow if the one before was rejected."""
        error = error.clamp(min=1e-10)
        factor = SAFETY * error ** (-0.85 / self.error_order) * before ** (0.2 / self.error_order)
        factor = factor.clamp(_LEAST, _MOST)
        factor = torch.where(rejected, factor.clamp(max=1.0), factor)
        if self.lazy:
            factor = torch.where((factor >= 1) & (factor <= _KEEP), 1.0, factor)
        return h * factor

    def rejected(self, h: Tensor, error: Tensor) -> Tensor:
        """The step for the next attempt; `error` is infinite if there is no estimate."""
        return h * (SAFETY * error ** (-1 / self.error_order)).clamp(_LEAST, SAFETY)


def first_step(
    flow: Flow, t: Tensor, y: Tensor, slope: Tensor, span: Tensor, tolerance: Tolerance, order: int
) -> Tensor:
    """A first step, (batch,) and positive, from the sizes of the state, its slope and its second derivative.

    Arguments:
        flow: the field.
        t, y, slope: (batch,), (batch, n), (batch, n); the start of the solution, and F there.
        span: (batch,), the signed length to the last time.
        tolerance: the weighted norm.
        order: of the method.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section II.4.
    """
    scale = tolerance.scale(y)
    d0, d1 = tolerance.norm(y, scale).double(), tolerance.norm(slope, scale).double()
    small = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = torch.where(small, 1e-6, 0.01 * d0 / d1.clamp(min=1e-300))
    h0 = torch.minimum(h0, 0.5 * span.abs())
    ahead = h0 * span.sign()
    further = flow(t + ahead, y + ahead.to(y.dtype)[:, None] * slope)
    d2 = tolerance.norm(further - slope, scale).double() / h0.clamp(min=1e-300)
    most = torch.maximum(d1, d2)
    h1 = torch.where(most <= 1e-15, (h0 * 1e-3).clamp(min=1e-6), (0.01 / most) ** (1 / (order + 1)))
    # A trial that is not finite gives no information: the step h0 is too long.
    h1 = torch.where(d2.isfinite(), h1, 0.1 * h0)
    return torch.minimum(torch.minimum(100 * h0, h1), span.abs())
