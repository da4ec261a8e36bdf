"""The table of slopes against the slopes."""

import pytest
import torch
from torch import nn

from resolvent.fields import Sin, nonexpansive, slopes_of
from resolvent.fields.activations import _SLOPES

EXAMPLES = [kind() for kind in _SLOPES] + [
    nn.GELU("tanh"),
    nn.ELU(3.0),
    nn.ELU(0.5),
    nn.CELU(0.3),
    nn.LeakyReLU(0.3),
    nn.LeakyReLU(2.0),
    nn.Softplus(beta=3.0),
    nn.Hardtanh(-3.0, 0.5),
]
SUPREMA_AT_INFINITY = (nn.Tanhshrink, nn.LogSigmoid, nn.Softplus)


@pytest.mark.parametrize("activation", EXAMPLES, ids=str)
def test_the_slopes_are_attained_and_not_exceeded(activation):
    x = torch.linspace(-30, 30, 1_200_001)
    difference = torch.diff(activation(x)) / torch.diff(x)
    slopes = slopes_of(activation)
    assert difference.min() >= slopes.low - 1e-8
    assert difference.max() <= slopes.high + 1e-8
    assert difference.min() == pytest.approx(slopes.low, abs=2e-3)
    assert difference.max() == pytest.approx(slopes.high, abs=1e-4)


@pytest.mark.parametrize("activation", EXAMPLES, ids=str)
def test_nonexpansive_activations_are_left_alone_and_the_others_divided(activation):
    lipschitz = slopes_of(activation).lipschitz
    scaled = nonexpansive(activation)
    x = torch.linspace(-5, 5, 101)
    if lipschitz <= 1:
        assert scaled is activation
    else:
        assert slopes_of(scaled).lipschitz == pytest.approx(1.0)
        assert torch.allclose(scaled(x) * lipschitz, activation(x))


def test_the_slope_of_gelu():
    assert slopes_of(nn.GELU()).lipschitz == pytest.approx(1.1289, abs=1e-4)
    assert slopes_of(nn.GELU("tanh")).lipschitz == pytest.approx(1.1290, abs=1e-4)
    assert slopes_of(nn.SiLU()).lipschitz == pytest.approx(1.0998, abs=1e-4)


def test_a_subclass_is_not_its_parent():
    class Doubled(nn.ReLU):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(ValueError, match="Doubled"):
        slopes_of(Doubled())


@pytest.mark.parametrize("slopes", [(1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_impossible_slopes_are_refused(slopes):
    with pytest.raises(ValueError, match="slopes must be finite"):
        nonexpansive(Sin(), slopes)
