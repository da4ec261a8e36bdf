"""Certified upper bounds on operator norms; the power method estimates them from below.

| layer | method | |
|---|---|---|
| Linear | singular values | exact |
| circular convolution: circular 'same' padding, the stride a divisor of the size (or 1x1) | Fourier | exact |
| any other with at most 1024 inputs | singular values of the assembled matrix | exact |
| larger convolution with zero padding, ConvTranspose | Fourier on a larger torus, or Schur's test | bound |
| larger convolution with other padding | as above, Fourier times the norm of the padding | bound |

Everything is computed in float64; exact means up to its rounding.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from resolvent.equation.jacobian import Jacobian
from resolvent.equation.modes import refuse_transforms
from resolvent.spectral.operators import Convolution, Dense, Shape, TransposedConvolution, layer_operator


class Disc(NamedTuple):
    """A disc with a real centre that contains all slopes of a vector field F.

        |F(u) - F(v) - center (u - v)| <= radius |u - v|      for all u, v

    Hence every eigenvalue of a Jacobian of F lies in the disc, F has the Lipschitz constant `max(|low|, |high|)`,
    and the one-sided Lipschitz constant of F is at most `high`.
    """

    center: float
    radius: float

    @property
    def low(self) -> float:
        """Left end of the disc on the real axis."""
        return self.center - self.radius

    @property
    def high(self) -> float:
        """Right end of the disc on the real axis."""
        return self.center + self.radius

    @property
    def lipschitz(self) -> float:
        """The largest modulus in the disc."""
        return abs(self.center) + self.radius

    @classmethod
    def spanning(cls, low: float, high: float) -> "Disc":
        """The disc with the diameter [low, high]; it contains every disc with a real centre between these ends."""
        return cls((low + high) / 2, (high - low) / 2)


class NormBound(NamedTuple):
    """An upper bound on the norm of a linear map, whether it is the norm itself, and how it was found."""

    value: float
    exact: bool
    method: str


def norm_bound(layer: nn.Module, input_shape: Sequence[int] | None = None, *, assemble: int = 1024) -> NormBound:
    """Computes a certified upper bound on the l2 norm of the linear map of a layer.

    Arguments:
        layer: Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d, parametrized or not.
        input_shape: shape of one sample, without the batch; a Linear layer needs none.
        assemble: the largest input size for which a convolution is assembled as a matrix.

    Returns:
        The bound; `exact` says whether it is the norm itself, `method` is "svd", "fourier" or "schur".
    """
    refuse_transforms("norm_bound")
    operator = layer_operator(layer, input_shape)
    with torch.no_grad():
        weight = layer.weight
        assert isinstance(weight, Tensor)
        weight = weight.detach().double()
        if isinstance(operator, Dense):
            return NormBound(float(torch.linalg.matrix_norm(weight, 2)), True, "svd")
        if isinstance(operator, TransposedConvolution):
            conv = operator.forward_map  # a map and its transpose have the same norm
        else:
            assert isinstance(operator, Convolution)
            conv = operator
        if _keeps_torus(conv, weight):
            return NormBound(_torus_norm(conv, weight, conv.input_shape[1:]), True, "fourier")
        size = math.prod(operator.input_shape)
        if size <= assemble:
            basis = torch.eye(size, dtype=weight.dtype, device=weight.device).reshape(size, *operator.input_shape)
            return NormBound(float(torch.linalg.matrix_norm(operator(weight, basis).flatten(1), 2)), True, "svd")
        return _convolution_bound(conv, weight)


def schur_bound(A: Callable[[Tensor], Tensor], input_shape: Sequence[int]) -> float:
    """Bounds the norm of a linear map with non-negative entries by Schur's test.

        |A|_2^2 <= |A|_1 |A|_inf = max(A^T 1) max(A 1)

    Arguments:
        A: a linear map of tensors (1, *input_shape), differentiable, with non-negative entries.
        input_shape: shape of one sample.
    """
    refuse_transforms("schur_bound")
    with torch.no_grad():
        jacobian = Jacobian(A, torch.ones(1, *input_shape, dtype=torch.float64))
        rows, columns = jacobian.value, jacobian.transposed_product(torch.ones_like(jacobian.value))
    return math.sqrt(float(rows.max()) * float(columns.max()))


def _keeps_torus(conv: Convolution, weight: Tensor) -> bool:
    """Whether the map is a circular convolution of its input, sampled at every s-th point, s the stride."""
    reach = tuple(d * (k - 1) for d, k in zip(conv.dilation, weight.shape[2:], strict=True))
    fits = all(sum(pair) == r for pair, r in zip(conv.padding, reach, strict=True))
    divides = all(n % s == 0 for n, s in zip(conv.input_shape[1:], conv.stride, strict=True))
    return fits and divides and (conv.padding_mode == "circular" or not any(reach))


def _convolution_bound(conv: Convolution, weight: Tensor) -> NormBound:
    sizes = conv.input_shape[1:]
    if conv.padding_mode == "zeros":
        # On a torus enlarged by the padding of one side, no kernel wraps around. The map is then a restriction of the
        # circular one: extend by zeros first, drop some outputs last.
        torus = tuple(n + max(pair) for n, pair in zip(sizes, conv.padding, strict=True))
        fourier = _torus_norm(conv, weight, torus)
    else:
        torus = tuple(n + sum(pair) for n, pair in zip(sizes, conv.padding, strict=True))
        fourier = _padding_norm(conv) * _torus_norm(conv, weight, torus)
    # Padding may add several kernel entries into one entry of the map; |weight| bounds their sum.
    size = weight.abs()
    schur = schur_bound(lambda x: conv(size.to(x), x), conv.input_shape)
    return NormBound(min(fourier, schur), False, "fourier" if fourier <= schur else "schur")


def _torus_norm(conv: Convolution, weight: Tensor, sizes: Shape) -> float:
    """Norm of the circular convolution on a torus of these sizes, rounded up to multiples of the stride.

    The Fourier transform turns it into one small matrix per frequency. A stride s aliases s frequencies into one: their
    matrices are concatenated and divided by sqrt(s).
    """
    torus = tuple(-(-n // s) * s for n, s in zip(sizes, conv.stride, strict=True))
    kernel = weight.reshape(conv.groups, -1, *weight.shape[1:])
    for dim, (n, d) in enumerate(zip(torus, conv.dilation, strict=True), start=3):
        places = torch.arange(kernel.shape[dim], device=kernel.device) * d % n
        shape = (*kernel.shape[:dim], n, *kernel.shape[dim + 1 :])
        kernel = kernel.new_zeros(shape).index_add(dim, places, kernel)
    dims = len(torus)
    symbol = torch.fft.fftn(kernel, dim=tuple(range(3, 3 + dims)))

    folded = [length for n, s in zip(torus, conv.stride, strict=True) for length in (s, n // s)]
    symbol = symbol.reshape(*symbol.shape[:3], *folded)  # groups, out, in, then (alias, frequency) for each dimension
    aliases = [3 + 2 * i for i in range(dims)]
    frequencies = [4 + 2 * i for i in range(dims)]
    symbol = symbol.permute(0, *frequencies, 1, 2, *aliases).flatten(dims + 2)
    norms = torch.linalg.matrix_norm(symbol, 2)
    return float(norms.max()) / math.sqrt(math.prod(conv.stride))


def _padding_norm(conv: Convolution) -> float:
    """Norm of the padding P alone: it copies entries, so P^T P is diagonal and counts the copies."""
    jacobian = Jacobian(conv.pad, torch.zeros(1, *conv.input_shape, dtype=torch.float64))
    copies = jacobian.transposed_product(torch.ones_like(jacobian.value))
    return math.sqrt(float(copies.max()))
