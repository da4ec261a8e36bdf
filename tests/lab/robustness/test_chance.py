"""Noise and corruptions are what they say, and belong to an image and not to its batch."""

import math

import pytest
import torch
from torch import Tensor

from lab.robustness.classifiers import Linear
from resolvent_lab.robustness import (
    Blur,
    Corruption,
    GaussianNoise,
    Occlusion,
    Rotation,
    SaltAndPepper,
    classify,
    gaussian_noise,
)
from seeding import shifted

CORRUPTIONS = (Rotation(30.0), Blur(1.0), Occlusion(4.0), SaltAndPepper(0.2))


def pictures(count: int = 6, size: int = 28, channels: int = 1) -> Tensor:
    return torch.rand(count, channels, size, size)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda each: each.name)
def test_nothing_happens_at_severity_zero(corruption: Corruption) -> None:
    images = pictures(channels=2)
    torch.testing.assert_close(type(corruption)(0.0).corrupt(images, 0), images, rtol=0, atol=0)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda each: each.name)
def test_an_image_is_corrupted_alike_in_every_company(corruption: Corruption) -> None:
    images = pictures()
    corrupted = corruption.corrupt(images, 3)
    torch.testing.assert_close(corruption.corrupt(images[:2], 3), corrupted[:2], rtol=0, atol=0)
    assert not torch.equal(corrupted, images)
    if corruption != Blur(1.0):
        assert not torch.equal(corruption.corrupt(images, 4), corrupted)


def test_noise_has_its_moments_and_scales() -> None:
    images = torch.full((50, 1, 28, 28), 0.5)
    noise = gaussian_noise(images, 1.0, seed=shifted(0)) - images
    assert abs(float(noise.mean())) < 5 / math.sqrt(noise.numel())
    assert abs(float(noise.square().mean()) - 1) < 5 * math.sqrt(2 / noise.numel())
    torch.testing.assert_close(gaussian_noise(images, 0.3, seed=shifted(0)), images + 0.3 * noise)
    torch.testing.assert_close(gaussian_noise(images, 0.3, shifted(0), clamp=True), (images + 0.3 * noise).clamp(0, 1))
    torch.testing.assert_close(gaussian_noise(images[:3], 1.0, seed=shifted(0)), images[:3] + noise[:3])
    for other in (gaussian_noise(images, 1.0, seed=shifted(1)), gaussian_noise(images, 1.0, seed=shifted(0), draw=1)):
        correlation = ((other - images) * noise).mean()
        assert abs(float(correlation)) < 5 / math.sqrt(noise.numel())


def test_a_quarter_turn_moves_every_pixel() -> None:
    images = pictures()
    turned = Rotation(90.0).corrupt(images, shifted(0))
    for image, result in zip(images, turned, strict=True):
        errors = [float((torch.rot90(image, turns, (1, 2)) - result).abs().max()) for turns in (-1, 1)]
        assert min(errors) < 1e-12


def test_rotations_keep_what_is_in_the_middle() -> None:
    images = torch.zeros(8, 1, 28, 28)
    images[:, :, 10:18, 12:16] = 1.0
    rotated = Rotation(30.0).corrupt(images, shifted(0))
    torch.testing.assert_close(rotated.sum(dim=(1, 2, 3)), torch.full((8,), 32.0), rtol=0.03, atol=0)
    assert (
        len(
            {
                round(float(angle), 6)
                for angle in (rotated * torch.arange(28.0)[:, None] * torch.arange(28.0)).sum((1, 2, 3))
            }
        )
        == 2
    )


def test_blur_spreads_a_point_by_its_variance() -> None:
    point = torch.zeros(1, 2, 41, 41)
    point[:, :, 20, 20] = 1.0
    blurred = Blur(2.0).corrupt(point, 0)
    torch.testing.assert_close(blurred.sum(dim=(2, 3)), torch.ones(1, 2))
    at = torch.arange(41.0) - 20
    for axis in (2, 3):
        variance = (blurred.sum(dim=axis) * at.square()).sum(dim=-1)
        torch.testing.assert_close(variance, torch.full((1, 2), 4.0), rtol=2e-3, atol=0)  # cut off at four sigma
    torch.testing.assert_close(Blur(2.0).corrupt(torch.ones(1, 1, 5, 5), 0), torch.ones(1, 1, 5, 5))


def test_occlusion_blackens_one_square() -> None:
    occluded = Occlusion(3).corrupt(torch.ones(200, 2, 9, 7), shifted(0))
    black = occluded == 0
    assert bool((black.sum(dim=(2, 3)) == 9).all())
    assert torch.equal(black[:, 0], black[:, 1])
    assert bool(((black.any(dim=2).sum(dim=-1) == 3) & (black.any(dim=3).sum(dim=-1) == 3)).all())
    assert bool(black.any(dim=(0, 1)).all()), "no corner is out of reach"
    assert bool((Occlusion(7).corrupt(torch.ones(2, 1, 7, 7), shifted(0)) == 0).all())


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_salt_and_pepper_hit_their_share(share: float) -> None:
    images = torch.full((5, 3, 11, 13), 0.3)
    result = SaltAndPepper(share).corrupt(images, shifted(0))
    hit = round(share * 11 * 13)
    assert bool(((result == 1).sum(dim=(2, 3)) == hit // 2).all())
    assert bool(((result == 0).sum(dim=(2, 3)) == hit - hit // 2).all())
    assert bool(((result == 0.3).sum(dim=(2, 3)) == 11 * 13 - hit).all())
    assert torch.equal(result[:, 0], result[:, 2])


def test_ranks_and_what_they_are_compared_with() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tensor([[3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [3.0, 3.0, 1.0], [math.nan, 0.0, 0.0]])

    outcome = classify(Fixed(), torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))
    assert outcome.rank.tolist() == [0, 1, 1, 2]
    assert outcome.correct.tolist() == [True, False, False, False]
    assert outcome.top(2).tolist() == [True, True, True, False]
    assert outcome.accuracy == 0.25


def test_batches_make_no_difference_under_noise() -> None:
    model, images = Linear(4), torch.rand(11, 1, 10, 10)
    labels = model(images).argmax(dim=1)
    one, many = (GaussianNoise(0.4, draws=3)(model, images, labels, batch_size=size).rank for size in (100, 4))
    assert torch.equal(one, many)
    assert len({tuple(draw.tolist()) for draw in one.chunk(3)}) > 1, "draws differ"


def test_refusals() -> None:
    images = pictures(2)
    with pytest.raises(ValueError, match=r"sigma must be 0 or more, got -0\.1"):
        gaussian_noise(images, -0.1, 0)
    with pytest.raises(ValueError, match="seed must be 0 or more, got -1"):
        gaussian_noise(images, 0.1, -1)
    with pytest.raises(ValueError, match=r"whole number of pixels within the 28 x 28 image, got 2\.5"):
        Occlusion(2.5).corrupt(images, 0)
    with pytest.raises(ValueError, match=r"severity must lie between 0 and 1, got 1\.5"):
        SaltAndPepper(1.5).corrupt(images, 0)
    with pytest.raises(ValueError, match="only square images are rotated, got 4 x 5"):
        Rotation(10.0).corrupt(torch.rand(1, 1, 4, 5), 0)
    with pytest.raises(ValueError, match=r"one whole number of type int64 for each of the 2 images.*float64"):
        classify(Linear(4), images, torch.zeros(2))
