"""Gaussian noise, and where in a network it gets the better of the signal."""

import torch
from torch import Tensor, nn

from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, judge
from resolvent_lab.robustness.randomness import per_image


def gaussian_noise(images: Tensor, sigma: float, seed: int, draw: int = 0, clamp: bool = False) -> Tensor:
    """x + sigma e with e ~ N(0, 1) for each pixel, the same e for every sigma.

    Arguments:
        images: (n, channels, height, width).
        sigma: standard deviation, 0 or more.
        seed, draw: which e.
        clamp: whether the result is cut off to [0, 1], as the pixels of a picture are. The paper leaves it as it is.
    """
    if sigma < 0:
        raise ValueError(f"sigma must be 0 or more, got {sigma}.")
    shape = images.shape[1:]
    noisy = images + sigma * per_image(lambda random: random.standard_normal(shape), images, seed, "noise", draw)
    return noisy.clamp(0, 1) if clamp else noisy


def noise_outcomes(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    sigma: float,
    seed: int,
    draws: int = 5,
    clamp: bool = False,
    batch_size: int = BATCH_SIZE,
) -> list[Outcome]:
    """The outcomes for several draws of the noise."""
    return [judge(model, gaussian_noise(images, sigma, seed, draw, clamp), labels, batch_size) for draw in range(draws)]


@torch.no_grad()
def noise_to_signal(network: nn.Sequential, images: Tensor, noisy: Tensor) -> dict[str, float]:
    """After each module of a network, the power of what noise changes over the power of what tells images apart:

        E |f(x + e) - f(x)|^2 / E |f(x) - E f(x)|^2.

    A module that treats noise like the signal leaves the ratio as it is.

    Arguments:
        network: its modules are applied one after the other.
        images: (n, channels, height, width), as they are.
        noisy: the same with noise.

    Returns:
        The ratio behind each module by its name, and that of the images themselves as "images".
    """
    ratios = {"images": _ratio(images, noisy)}
    for name, module in network.named_children():
        images, noisy = module(images), module(noisy)
        ratios[name] = _ratio(images, noisy)
    return ratios


def _ratio(clean: Tensor, noisy: Tensor) -> float:
    spread = clean - clean.mean(dim=0)
    return ((noisy - clean).square().sum() / spread.square().sum()).item()
