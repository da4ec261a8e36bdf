"""How noise fares on its way through a network."""

import pytest
import torch
from torch import nn

from resolvent_lab.robustness.noise import noise_to_signal


def test_linear_maps_with_a_known_ratio() -> None:
    """Images that differ in their first pixel alone, with noise in all four: (4 s^2) / v, and s^2 / v where all but the
    first pixel are dropped; a multiple changes nothing."""
    first = nn.Linear(4, 4, bias=False)
    first.weight.data = torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    network.add_module("first", first)
    network.add_module("twice", nn.Linear(4, 4, bias=False))
    network.twice.weight.data = 2 * torch.eye(4)
    images = torch.zeros(20000, 1, 2, 2)
    images[:, 0, 0, 0] = 3 * torch.randn(20000)
    ratios = noise_to_signal(network, images, images + 0.5 * torch.randn_like(images))
    assert list(ratios) == ["images", "flatten", "first", "twice"]
    assert ratios["images"] == pytest.approx(4 * 0.25 / 9, rel=0.05)
    assert ratios["flatten"] == pytest.approx(ratios["images"])
    assert ratios["first"] == pytest.approx(0.25 / 9, rel=0.05)
    assert ratios["twice"] == pytest.approx(ratios["first"])
