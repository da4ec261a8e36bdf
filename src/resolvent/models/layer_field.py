"""The vector field of one layer of a residual network, for each normalisation."""

from dataclasses import dataclass

from torch import nn

from resolvent.fields import Bounded, Conv, Field, GradientFlow, initialise
from resolvent.models.batch_norm import BatchNormConv
from resolvent.models.scaled import Scaled

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
