"""`OneSided`: a field whose slopes are bounded from above only."""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from resolvent.fields.activations import derivative_of, nonexpansive, slopes_of
from resolvent.fields.base import Field, Time
from resolvent.fields.mlp import does_more
from resolvent.spectral import Disc, layer_operator, norm_bound, spectral_norm

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class OneSided(Field):
    """A perceptron with one hidden layer whose one-sided Lipschitz constant is at most `high`, for any weights.

        F(y) = -(L K - 2 sqrt(high) L^(1/2) Q)^T s(K y + b),      s with slopes in [0, 1],  |Q| <= 1,

    where L is a positive diagonal matrix, one entry per hidden unit or channel. K, b, L and Q are learned; K and L have
    no bound, so that the field may be arbitrarily stiff.

    Theorem: <v, F'(y) v> <= high |v|^2. Proof: let D be the slopes of s at K y + b, and u = D K v. All slopes lie in
    [0, 1], so u_i (K v)_i >= u_i^2, and

        <v, F' v> = -<K v, L u> + 2 sqrt(high) <Q v, L^(1/2) u> <= -|L^(1/2) u|^2 + 2 sqrt(high) |v| |L^(1/2) u|,

    whose maximum over |L^(1/2) u| is high |v|^2. Hence an implicit step has exactly one solution if theta*h*high < 1.
    The bound on Q holds up to the accuracy of the power method, see `resolvent.spectral.spectral_norm`.

    Arguments:
        layer: K and b, such as nn.Linear(dim, width) or nn.Conv2d(channels, width, 3, padding=1). Its initial weights
            are kept; those of Q are drawn in the same way.
        high: the limit, above 0.
        activation: s, non-decreasing; Softplus(beta=4) by default. It is divided by its largest slope, if above 1.
        input_shape: shape of one sample, without the batch; a Linear layer needs none.
        scale: initial value of the entries of L.
        slopes: smallest and largest slope of an unknown activation.
        power_iterations: see `resolvent.spectral.spectral_norm`.

    Reference: the idea is that of Winston and Kolter, Monotone operator equilibrium networks, 2020, who bound the
    symmetric part of a matrix.
    """

    rowwise = True
    autonomous = True

    def __init__(
        self,
        layer: Layer,
        high: float,
        activation: nn.Module | None = None,
        *,
        input_shape: Sequence[int] | None = None,
        scale: float = 0.1,
        slopes: tuple[float, float] | None = None,
        power_iterations: int = 1,
    ) -> None:
        super().__init__()
        if not (math.isfinite(high) and high > 0):
            raise ValueError(f"high must be a positive number, got {high}")
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be a positive number, got {scale}")
        if not isinstance(layer, Layer):
            raise ValueError(f"layer must be a Linear or a Conv1d, Conv2d or Conv3d layer, got {layer!r}")
        self.activation = nonexpansive(nn.Softplus(beta=4.0) if activation is None else activation, slopes)
        lowest = slopes_of(self.activation).low
        if lowest < 0:
            raise ValueError(
                f"the activation must be non-decreasing, but a slope of {type(activation).__name__} is {lowest:.4g}: "
                "use Softplus, ReLU, Tanh or ELU"
            )
        self.operator = layer_operator(layer, input_shape)
        self.shape = self.operator.input_shape
        self.high = float(high)
        self.layer = layer
        self.mixing = _drawn_again(layer)
        spectral_norm(self.mixing, input_shape, 1.0, power_iterations)
        like = layer.weight
        self.log_scale = nn.Parameter(torch.full((len(like),), math.log(scale), dtype=like.dtype, device=like.device))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        hidden = self.activation(self.layer(y))
        return -self.operator.adjoint(self._outer(), hidden)

    def _outer(self) -> Tensor:
        """L K - 2 sqrt(high) L^(1/2) Q, of the shape of the layer's weight."""
        K, Q = self.layer.weight, self.mixing.weight
        root = torch.exp(self.log_scale / 2).reshape(-1, *[1] * (K.dim() - 1))
        return root * (root * K - 2 * math.sqrt(self.high) * Q)

    @property
    def value_and_jacobian(self) -> Callable[[Time, Tensor], tuple[Tensor, Tensor]] | None:
        plain = type(self.layer).forward is nn.Linear.forward and not does_more(self.layer)
        known = derivative_of(self.activation) is not None and not does_more(self.activation)
        return self._value_and_jacobian if plain and known else None

    @torch.no_grad()
    def _value_and_jacobian(self, t: Time, y: Tensor) -> tuple[Tensor, Tensor]:
        K, outer = self.layer.weight, self._outer()
        x = self.layer(y)
        hidden = self.activation(x)
        derivative = derivative_of(self.activation)
        assert derivative is not None
        tangents = K.mT[:, None] * derivative(self.activation, x, hidden)
        return -hidden @ outer, -(tangents @ outer).permute(1, 2, 0)

    def disc(self) -> Disc:
        with torch.no_grad():
            largest = float(self.log_scale.max().exp())
        inner, mixing = (norm_bound(layer, self.shape).value for layer in (self.layer, self.mixing))
        outer = largest * inner + 2 * math.sqrt(self.high * largest) * mixing
        return Disc(0.0, outer * inner * slopes_of(self.activation).high)

    def extra_repr(self) -> str:
        return f"high={self.high:.4g}"


def _drawn_again(layer: Layer) -> Layer:
    """A layer of the same kind without bias, with new weights."""
    copied = copy.deepcopy(layer)
    copied.register_parameter("bias", None)
    copied.reset_parameters()
    return copied
