"""The vector fields of the layers of a residual network, one for each normalisation."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.fields import Bounded, Conv, Field, GradientFlow, Time, initialise
from resolvent.fields.base import expect_field
from resolvent.spectral import Disc, norm_bound

GRADIENTS = ("gradient", "bounded-gradient")
NORMALIZATIONS = ("bounded", "free", "batch", *GRADIENTS)

FREE_LINEAR_PART = -0.25
"""The linear part that solvers split off from a gradient flow with a free K; it affects only speed. With Xavier
initialisation |K|^2 is 2 to 4 for any number of channels, and -1 is best. After training with weight decay slopes are
small, and 0 is best."""


@dataclass(frozen=True)
class LayerField:
    """Makes the fields of layers; for the attributes see `rs.models.implicit_resnet18`."""

    normalization: str
    low: float
    high: float
    learn_shift: bool
    scale: float | None
    learn_scale: bool
    per_channel: bool
    always: bool
    power_iterations: int
    init: str

    def __post_init__(self) -> None:
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(f"normalization must be one of {NORMALIZATIONS}, got {self.normalization!r}.")
        if self.learn_shift and self.normalization != "bounded":
            raise ValueError(f"only a bounded field has a shift to be learned, got {self.normalization!r}.")
        if self.normalization in GRADIENTS and (self.scale is not None or self.per_channel):
            raise ValueError(
                f"a gradient flow has no scale S, got scale={self.scale} and per_channel={self.per_channel}: leave "
                "them out, and set step_size instead."
            )

    def __call__(self, channels: int, size: tuple[int, int]) -> Field:
        """The field for states (channels, *size)."""
        if self.normalization in GRADIENTS:
            return self._gradient_flow(channels, size)
        if self.normalization == "bounded":
            conv = Conv(
                channels,
                size=size,
                bound=1.0,
                always=self.always,
                power_iterations=self.power_iterations,
                init=self.init,
            )
            return Bounded(
                conv,
                self.low,
                self.high,
                self.learn_scale,
                self.learn_shift,
                scale=self.scale,
                per_channel=self.per_channel,
            )
        conv = Conv(channels, size=size, init=self.init)
        inner = BatchNormConv(conv) if self.normalization == "batch" else conv
        return Scaled(inner, self.scale, self.learn_scale, self.per_channel)

    def _gradient_flow(self, channels: int, size: tuple[int, int]) -> GradientFlow:
        # Twice the channels: as many weights and biases as the two convolutions of the other fields.
        layer = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        initialise([layer], self.init)
        bounded = self.normalization == "bounded-gradient"
        return GradientFlow(
            layer,
            nn.ReLU(),
            input_shape=(channels, *size),
            bound=1.0 if bounded else None,
            linear_part=None if bounded else FREE_LINEAR_PART,
            always=self.always,
            power_iterations=self.power_iterations,
        )


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
        self.shape, self.autonomous = field.shape, field.autonomous
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
    def rowwise(self) -> bool:  # type: ignore[override]
        return self.field.rowwise

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


class BatchNormConv(Field):
    """F(y) = K_2 * relu(N_2(K_1 * relu(N_1(y)))), N the normalisation by batch statistics.

    For explicit layers only: in training mode the field couples the samples of a batch, and each evaluation in a solve
    would update the running statistics.

    Reference: He et al., Identity mappings in deep residual networks, 2016.
    """

    autonomous = True

    def __init__(self, conv: Conv) -> None:
        super().__init__()
        self.layers, self.activation, self.shape = conv.layers, conv.activation, conv.shape
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in conv.widths[:-1])

    def forward(self, t: Time, y: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = layer(self.activation(norm(y)))
        return y

    def disc(self) -> Disc:
        if self.training:
            raise ValueError("batch normalisation has no fixed Lipschitz constant while it trains: call model.eval()")
        assert self.shape is not None
        gains = [self._gain(norm) for norm in self.norms]  # type: ignore[arg-type]
        norms = [norm_bound(layer, self.shape).value for layer in self.layers]
        return Disc(0.0, math.prod(gains) * math.prod(norms))

    @staticmethod
    @torch.no_grad()
    def _gain(norm: nn.BatchNorm2d) -> float:
        assert norm.running_var is not None
        return float((norm.weight * torch.rsqrt(norm.running_var + norm.eps)).abs().max())
