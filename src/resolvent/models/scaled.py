"""`Scaled`: a field with a learned scale and no bound."""

import math

import torch
from torch import Tensor, nn

from resolvent.fields import Field, Time
from resolvent.fields.arguments import expect_field
from resolvent.spectral import Disc


class Scaled(Field):
    """F(y) = S(v) * G(y), S = sigmoid: `rs.fields.Bounded` without shift, radius and bound on G.

    It has the same parameters as a `Bounded` field around the same G, so that the two can be compared.

    Arguments:
        field: G, any field that declares the shape of its states.
        scale: initial value of S, in (0, 1), if it is learned; otherwise its constant value, 1 by default, with F = G.
        learn_scale: whether S is learned.
        per_channel: S has one entry per channel, the first dimension, instead of one per entry.
    """

    raw_scale: Tensor

    def __init__(
        self, field: Field, scale: float | None = None, learn_scale: bool = True, per_channel: bool = False
    ) -> None:
        super().__init__()
        expect_field(field, "Scaled", "rs.Autonomous(module, shape=...)")
        if field.shape is None:
            raise ValueError(f"{type(field).__name__} has no declared shape of its states: make it with size=(...)")
        self.field = field
        self.shape, self.rowwise, self.autonomous = field.shape, field.rowwise, field.autonomous
        self.learn_scale = learn_scale
        value = (0.1 if learn_scale else 1.0) if scale is None else scale
        if not (0 < value < 1 if learn_scale else math.isfinite(value) and value > 0):
            limits = "lie in (0, 1) if it is learned" if learn_scale else "be a positive number"
            raise ValueError(f"scale must {limits}, got {scale}")
        if learn_scale:
            shape = (self.shape[0], *[1] * (len(self.shape) - 1)) if per_channel else self.shape
            self.raw_scale = nn.Parameter(torch.full(shape, math.log(value / (1 - value))))
        else:
            self.register_buffer("raw_scale", torch.tensor(value))

    @property
    def scale(self) -> Tensor:
        """S, broadcastable to one sample."""
        return torch.sigmoid(self.raw_scale) if self.learn_scale else self.raw_scale

    def forward(self, t: Time, y: Tensor) -> Tensor:
        value: Tensor = self.scale * self.field(t, y)
        return value

    def disc(self) -> Disc:
        with torch.no_grad():
            return Disc(0.0, float(self.scale.max()) * self.field.lipschitz())
