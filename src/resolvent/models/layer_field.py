"""The vector field of one layer of a residual network, by the way it is normalised."""

from dataclasses import dataclass

from resolvent.fields import Bounded, Conv, Field
from resolvent.models.batch_norm import BatchNormConv
from resolvent.models.scaled import Scaled

NORMALIZATIONS = ("bounded", "free", "batch")


@dataclass(frozen=True)
class LayerField:
    """Makes the fields of layers; the attributes are described at `rs.models.implicit_resnet18`."""

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

    def __call__(self, channels: int, size: tuple[int, int]) -> Field:
        """The field for states (channels, *size)."""
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
