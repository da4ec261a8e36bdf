"""`BatchNormConv`: convolutions with batch normalisation, the field of the usual residual network."""

import math

import torch
from torch import Tensor, nn

from resolvent.fields import Conv, Field, Time
from resolvent.spectral import Disc, norm_bound


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
