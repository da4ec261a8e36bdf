"""Pre-activation convolutions as a vector field."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from resolvent.fields.activations import nonexpansive, slopes_of
from resolvent.fields.base import Field, Time
from resolvent.fields.weights import initialise, share_bound
from resolvent.spectral import Disc, norm_bound

_CONV: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Conv(Field):
    """Convolutions, each after an activation, that keep the number of channels and the size.

        F(y) = K_n * s(... K_2 * s(K_1 * s(y) + b_1) + b_2 ...) + b_n

    Arguments:
        channels: of the state.
        depth: number n of convolutions.
        width: channels between the convolutions; `channels` by default.
        kernel_size: of every convolution, one number or one per dimension.
        size: spatial size of the state, such as (height, width). If given, the field accepts no other: norms of
            convolutions, and so all bounds, depend on it.
        dims: 1, 2 or 3, if no size is given.
        activation: s, a module that acts elementwise; ReLU by default.
        bound: if given, an upper limit for the Lipschitz constant of F on states of this size: each of the n maps is
            normalised to bound^(1/n), and the activation divided by its Lipschitz constant if that exceeds 1.
        slopes: smallest and largest slope of an unknown activation; needed only with a bound.
        padding_mode: "zeros", "circular", "reflect" or "replicate".
        bias: whether the convolutions have biases.
        always: whether maps whose norm is below their share are normalised too.
        power_iterations: see `resolvent.spectral.spectral_norm`.
        init: "xavier" (uniform) or "xavier_unit"; the biases start at zero, see `resolvent.fields.initialise`.

    Reference: He et al., Identity mappings in deep residual networks, 2016.
    """

    rowwise = True
    autonomous = True

    def __init__(
        self,
        channels: int,
        depth: int = 2,
        width: int | None = None,
        kernel_size: int | tuple[int, ...] = 3,
        size: Sequence[int] | None = None,
        *,
        dims: int = 2,
        activation: nn.Module | None = None,
        bound: float | None = None,
        slopes: tuple[float, float] | None = None,
        padding_mode: str = "zeros",
        bias: bool = True,
        always: bool = False,
        power_iterations: int = 1,
        init: str = "xavier",
    ) -> None:
        super().__init__()
        dims = dims if size is None else len(size)
        if dims not in _CONV:
            raise ValueError(f"a convolution has 1, 2 or 3 spatial dimensions, got {dims}")
        if channels < 1 or depth < 1 or (width is not None and width < 1):
            raise ValueError(f"channels, depth and width must be at least 1, got {channels}, {depth} and {width}")
        self.shape = None if size is None else (channels, *size)
        if bound is not None and self.shape is None:
            raise ValueError("the norm of a convolution depends on the size of the state: give size=(...) with a bound")
        self.bound = bound
        self.activation = nn.ReLU() if activation is None else activation
        self.widths = [channels, *[channels if width is None else width] * (depth - 1), channels]
        conv = _CONV[dims]
        self.layers = nn.ModuleList(
            conv(a, b, kernel_size, padding="same", padding_mode=padding_mode, bias=bias)  # type: ignore[arg-type]
            for a, b in pairwise(self.widths)
        )
        initialise(self.layers, init)
        if bound is not None and self.shape is not None:
            self.activation = nonexpansive(self.activation, slopes)
            share_bound(list(self.layers), self._shapes(self.shape), bound, power_iterations, always)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if self.shape is not None and y.shape[1:] != self.shape:
            raise ValueError(f"this field is made for states {self.shape}, got {tuple(y.shape[1:])}: give it that size")
        for layer in self.layers:
            y = layer(self.activation(y))
        return y

    def disc(self) -> Disc:
        if self.shape is None:
            raise ValueError("the norm of a convolution depends on the size of the state: make the field with size=...")
        steepness = slopes_of(self.activation).lipschitz ** len(self.layers)
        shapes = zip(self.layers, self._shapes(self.shape), strict=True)
        return Disc(0.0, steepness * math.prod(norm_bound(layer, shape).value for layer, shape in shapes))

    def _shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The input shape of each layer, for states of a given shape."""
        return [(channels, *shape[1:]) for channels in self.widths[:-1]]
