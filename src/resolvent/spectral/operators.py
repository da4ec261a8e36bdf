"""The linear maps of layers, with stride, padding, padding mode, dilation and groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.equation.modes import outside_inference_mode

Shape = tuple[int, ...]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSE: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class LayerOperator(Protocol):
    """The linear map of a layer, without bias, as a function of its weight."""

    @property
    def input_shape(self) -> Shape:
        """Shape of one sample."""
        ...

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        """Applies the map to x, (batch, *input_shape)."""
        ...

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """Applies the transposed map to u, shaped like an output; returns (batch, *input_shape)."""
        ...


@dataclass(frozen=True)
class Dense:
    """x -> W x."""

    input_shape: Shape

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        return F.linear(x, weight)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        return u @ weight


@dataclass(frozen=True)
class Convolution:
    """Padding followed by a convolution; both are linear and part of the map."""

    input_shape: Shape
    stride: Shape
    padding: tuple[tuple[int, int], ...]  # before and after, for each spatial dimension
    padding_mode: str
    dilation: Shape
    groups: int

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        conv = _CONV[len(self.stride)]
        if self.pads_plainly:
            before = tuple(pair[0] for pair in self.padding)
            return conv(x, weight, None, self.stride, before, self.dilation, self.groups)
        return conv(self.pad(x), weight, None, self.stride, 0, self.dilation, self.groups)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        if not self.pads_plainly:
            origin = u.new_zeros(u.shape[0], *self.input_shape)
            with outside_inference_mode(weight, u, origin) as (weight, u, origin):
                transposed: Tensor = torch.func.vjp(lambda x: self(weight, x), origin)[1](u)[0]
            return transposed
        before = tuple(pair[0] for pair in self.padding)
        # With a stride the last few inputs may be unused; the transposed map returns zeros for them.
        unread = tuple(
            (n + 2 * p - d * (k - 1) - 1) % s
            for n, p, d, k, s in zip(
                self.input_shape[1:], before, self.dilation, weight.shape[2:], self.stride, strict=True
            )
        )
        transpose = _TRANSPOSE[len(self.stride)]
        return transpose(u, weight, None, self.stride, before, unread, self.groups, self.dilation)

    @property
    def pads_plainly(self) -> bool:
        """Whether the convolution itself can do the padding: zeros, the same on both sides."""
        return self.padding_mode == "zeros" and all(before == after for before, after in self.padding)

    def pad(self, x: Tensor) -> Tensor:
        """Pads x, (batch, *input_shape), according to the padding mode."""
        flat = [width for pair in reversed(self.padding) for width in pair]
        return F.pad(x, flat, "constant" if self.padding_mode == "zeros" else self.padding_mode)


@dataclass(frozen=True)
class TransposedConvolution:
    """The map of ConvTranspose; `forward_map` is the convolution it transposes (up to outputs that are dropped)."""

    input_shape: Shape
    padding: Shape
    output_padding: Shape
    forward_map: Convolution

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        conv = self.forward_map
        transpose = _TRANSPOSE[len(self.padding)]
        return transpose(x, weight, None, conv.stride, self.padding, self.output_padding, conv.groups, conv.dilation)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        # If the output padding is at least the stride, the convolution has outputs that correspond to no input.
        inside = tuple(slice(n) for n in self.input_shape)
        return self.forward_map(weight, u)[(slice(None), *inside)]


def layer_operator(layer: nn.Module, input_shape: Sequence[int] | None = None) -> LayerOperator:
    """Returns the linear map that a layer applies to samples of a given shape.

    Arguments:
        layer: Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d.
        input_shape: shape of one sample, without the batch, such as (channels, height, width). A Linear layer needs
            none; it acts on the last dimension.
    """
    if isinstance(layer, nn.Linear):
        return _dense(layer, input_shape)
    if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        shape = _image_shape(layer, input_shape)
        return _convolution(layer, shape) if isinstance(layer, CONVOLUTIONS) else _transposed(layer, shape)
    raise ValueError(
        f"no linear map is known for {type(layer).__name__}: use Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d, "
        "or give the map as a function to resolvent.spectral.operator_norm"
    )


def _dense(layer: nn.Linear, input_shape: Sequence[int] | None) -> Dense:
    if input_shape is not None and tuple(input_shape)[-1:] != (layer.in_features,):
        raise ValueError(
            f"input_shape {tuple(input_shape)} does not end in the {layer.in_features} features which the layer takes"
        )
    return Dense((layer.in_features,))


def _image_shape(layer: Any, input_shape: Sequence[int] | None) -> Shape:
    dims = len(layer.kernel_size)
    if input_shape is None:
        raise ValueError(
            f"the norm of a {type(layer).__name__} depends on the size of its input: give input_shape, "
            f"({layer.in_channels}, and {dims} spatial sizes), without the batch"
        )
    shape = tuple(int(n) for n in input_shape)
    if len(shape) != dims + 1 or shape[0] != layer.in_channels or min(shape) < 1:
        raise ValueError(
            f"input_shape {shape} does not fit a {type(layer).__name__} with {layer.in_channels} input channels: "
            f"give ({layer.in_channels}, and {dims} spatial sizes), without the batch"
        )
    return shape


def _convolution(layer: Any, shape: Shape) -> Convolution:
    reach = tuple(d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    match layer.padding:
        case "same":
            padding = tuple((r // 2, r - r // 2) for r in reach)
        case "valid":
            padding = tuple((0, 0) for _ in reach)
        case sizes:
            padding = tuple((p, p) for p in sizes)
    if any(n + sum(pair) < r + 1 for n, pair, r in zip(shape[1:], padding, reach, strict=True)):
        raise ValueError(f"input_shape {shape} with padding {padding} is smaller than the kernel's reach {reach} + 1")
    return Convolution(shape, layer.stride, padding, layer.padding_mode, layer.dilation, layer.groups)


def _transposed(layer: Any, shape: Shape) -> TransposedConvolution:
    output = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for n, s, p, d, k, extra in zip(
            shape[1:],
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.kernel_size,
            layer.output_padding,
            strict=True,
        )
    )
    if min(output) < 1:
        raise ValueError(f"input_shape {shape} is too small: the output of {type(layer).__name__} would be empty")
    pairs = tuple((p, p) for p in layer.padding)
    forward_map = Convolution((layer.out_channels, *output), layer.stride, pairs, "zeros", layer.dilation, layer.groups)
    return TransposedConvolution(shape, layer.padding, layer.output_padding, forward_map)
