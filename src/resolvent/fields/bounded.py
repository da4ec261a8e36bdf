"""`Bounded`: a field whose spectrum stays between two limits."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.fields.base import Field, Time, expect_field
from resolvent.spectral import Disc


class Bounded(Field):
    """A vector field whose Jacobian has all eigenvalues in the disc with the diameter [low, high].

        F(y) = c y + r S(v) * G(y),      c = (low + high)/2,  r = (high - low)/2,  S = sigmoid

    G is a field with Lipschitz constant 1, and v are learned weights, so 0 < S < 1 in each entry.

    Arguments:
        field: G, a field with a bound not above 1, such as MLP(..., bound=1.0).
        low: left limit.
        high: right limit. An implicit step needs theta*h*high < 1, see `check_pole`.
        learn_scale: whether S is learned; otherwise it is the number `scale`.
        learn_shift: whether c is learned too: c = (low + high)/2 + r (1 - max S) tanh(s), s a number that starts at 0.
            The disc with centre c and radius r max S stays within the limits for all s and S.
        scale: initial value of S, 0.1 by default, or its constant value, 1 by default, if it is not learned.
        shape: shape of one sample, and of S, if the field does not declare its own.
        per_channel: S has one entry per channel, the first dimension, instead of one per entry.

    Reference: Reshniak and Webster, Robust learning with implicit residual networks, 2021, eq. (16).
    """

    raw_scale: Tensor

    def __init__(
        self,
        field: Field,
        low: float,
        high: float,
        learn_scale: bool = True,
        learn_shift: bool = False,
        *,
        scale: float | None = None,
        shape: Sequence[int] | None = None,
        per_channel: bool = False,
    ) -> None:
        super().__init__()
        expect_field(field, "Bounded", "rs.Autonomous(module, lipschitz=...)")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"the limits must be finite with low < high, got low={low} and high={high}")
        if field.bound is None or field.bound > 1:
            raise ValueError(
                f"Bounded needs a field with a Lipschitz constant within 1, but {type(field).__name__} promises "
                f"{'nothing' if field.bound is None else field.bound}: make it with bound=1.0, or state the constant "
                "with Autonomous(module, lipschitz=...)"
            )
        self.field = field
        self.low, self.high = float(low), float(high)
        self.autonomous = field.autonomous
        self.bound = max(abs(self.low), abs(self.high))
        self.shape = field.shape if shape is None else tuple(shape)
        self.learn_scale, self.learn_shift = learn_scale, learn_shift
        self._init_scale(scale, per_channel)
        self.raw_shift = nn.Parameter(torch.zeros(())) if learn_shift else None

    def _init_scale(self, scale: float | None, per_channel: bool) -> None:
        if not self.learn_scale:
            scale = 1.0 if scale is None else scale
            if not 0 < scale <= 1:
                raise ValueError(f"a constant scale must lie in (0, 1], got {scale}")
            self.register_buffer("raw_scale", torch.tensor(scale))
            return
        scale = 0.1 if scale is None else scale
        if not 0 < scale < 1:
            raise ValueError(f"the initial scale must lie in (0, 1), got {scale}")
        if self.shape is None:
            raise ValueError(f"{type(self.field).__name__} does not declare the shape of its states: give shape=(...)")
        shape = (self.shape[0], *[1] * (len(self.shape) - 1)) if per_channel else self.shape
        self.raw_scale = nn.Parameter(torch.full(shape, math.log(scale / (1 - scale))))

    @classmethod
    def from_stability(cls, field: Field, theta: float, h: float, low: float, high: float, **options: Any) -> "Bounded":
        """Chooses the limits from the factors by which a theta step multiplies an eigenvector.

            R(z) = (1 + (1-theta) z) / (1 - theta z) = rho      <=>      z = (rho - 1) / (1 + theta (rho - 1))

        Arguments:
            field: G, as for the class.
            theta: of the scheme, in [0, 1].
            h: step.
            low: smallest value of R; above 1 - 1/theta, its limit for z -> -inf.
            high: largest value of R.
            options: as for the class.
        """
        _check_step(theta, h)
        lowest = 1 - 1 / theta if theta > 0 else -math.inf
        if not lowest < low < high:
            raise ValueError(
                f"the stability function for theta={theta} takes values above {lowest:.4g} left of its pole: need "
                f"{lowest:.4g} < low < high, got low={low} and high={high}"
            )
        z = [(rho - 1) / (1 + theta * (rho - 1)) for rho in (low, high)]
        return cls(field, z[0] / h, z[1] / h, **options)

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return self.field.rowwise

    @property
    def scale(self) -> Tensor:
        """S, broadcastable to one sample."""
        return torch.sigmoid(self.raw_scale) if self.learn_scale else self.raw_scale

    @property
    def radius(self) -> float:
        """r, half the distance of the limits; the slopes stay within r max S of the centre."""
        return (self.high - self.low) / 2

    @property
    def linear_part(self) -> float | Tensor:
        """The centre c of the disc: a float, or a 0-d tensor if it is learned."""
        middle = (self.low + self.high) / 2
        if self.raw_shift is None:
            return middle
        return middle + self.radius * (1 - self.scale.max()) * torch.tanh(self.raw_shift)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        return torch.addcmul(self.linear_part * y, self.radius * self.scale, self.field(t, y))

    @property
    def value_and_jacobian(self) -> Callable[[Time, Tensor], tuple[Tensor, Tensor]] | None:
        known = self.field.value_and_jacobian
        return None if known is None else partial(self._value_and_jacobian, known)

    @torch.no_grad()
    def _value_and_jacobian(
        self, known: Callable[[Time, Tensor], tuple[Tensor, Tensor]], t: Time, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        value, jacobian = known(t, y)
        c, scale = self.linear_part, self.radius * self.scale
        identity = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)
        return torch.addcmul(c * y, scale, value), c * identity + scale.reshape(-1, 1) * jacobian

    def disc(self) -> Disc:
        with torch.no_grad():
            return Disc(float(self.linear_part), self.radius * float(self.scale.max()) * self.field.lipschitz())

    def check_pole(self, theta: float, h: float) -> None:
        """Raises a ValueError if a theta step of size h could reach the pole 1/theta of its stability function.

        Then the step's equation may have no solution, or several. A learned S is below 1, so the spectrum does not
        reach `high`: theta*h*high = 1 is allowed unless S is rounded to 1; a larger product is not. With a constant S
        the right end is c + r S.
        """
        _check_step(theta, h)
        with torch.no_grad():
            reached = float(self.linear_part) + self.radius * float(self.scale.max())
        learned = self.learn_scale or self.learn_shift
        reach = self.high if learned else reached
        # Equality is allowed, so the comparison tolerates rounding.
        if theta * h * reached >= 1 or (learned and theta * h * reach > 1 + 1e-12):
            raise ValueError(
                f"theta*h*high = {theta:.4g}*{h:.4g}*{reach:.4g} = {theta * h * reach:.4g} >= 1: the field's spectrum "
                "can reach the pole of the stability function, where the step has no unique solution. Take "
                f"high < 1/(theta*h) = {1 / (theta * h):.4g}, or h < {1 / (theta * reach):.4g}, or "
                f"theta < {1 / (h * reach):.4g}"
            )

    def extra_repr(self) -> str:
        return f"low={self.low:.4g}, high={self.high:.4g}"


def _check_step(theta: float, h: float) -> None:
    if not 0 <= theta <= 1:
        raise ValueError(f"theta must lie in [0, 1], got {theta}")
    if not (math.isfinite(h) and h > 0):
        raise ValueError(f"the step h must be a positive number, got {h}")
