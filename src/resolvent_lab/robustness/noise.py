"""Gaussian noise, and the noise-to-signal ratio after each module of a network."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent_lab.robustness.attack import Attack, RecordPath
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, classify, fraction
from resolvent_lab.robustness.randomness import per_image


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """x + sigma e with e ~ N(0, 1), in several draws. The outcome has n rows for each draw, one draw after the other.

    Arguments:
        sigma: standard deviation, >= 0.
        draws: number of draws.
        clamp: whether the noisy images are clamped to [0, 1]. The paper does not clamp.
    """

    sigma: float
    draws: int = 5
    clamp: bool = False

    @property
    def path(self) -> RecordPath:
        return ("noise", f"{self.sigma:g}", "clamped" if self.clamp else "unclamped")

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, seed: int = 0, batch_size: int = BATCH_SIZE
    ) -> Outcome:
        draws = [gaussian_noise(images, self.sigma, seed, draw, self.clamp) for draw in range(self.draws)]
        outcomes = [classify(model, noisy, labels, batch_size) for noisy in draws]
        return Outcome(torch.cat([each.rank for each in outcomes]), torch.cat([each.images for each in outcomes]))

    def record(self, outcome: Outcome) -> dict[RecordPath, Any]:
        """The top-1 and top-2 accuracy of each draw."""
        return {(*self.path, f"top {k}"): [fraction(draw) for draw in outcome.top(k).chunk(self.draws)] for k in (1, 2)}


def gaussian_noise(images: Tensor, sigma: float, seed: int, draw: int = 0, clamp: bool = False) -> Tensor:
    """x + sigma e with e ~ N(0, 1) for each pixel. e is the same for every sigma.

    Arguments:
        images: (n, channels, height, width).
        sigma: standard deviation, >= 0.
        seed, draw: select e.
        clamp: whether the result is clamped to [0, 1]. The paper does not clamp.
    """
    if sigma < 0:
        raise ValueError(f"sigma must be 0 or more, got {sigma}.")
    shape = images.shape[1:]
    noisy = images + sigma * per_image(lambda random: random.standard_normal(shape), images, seed, "noise", draw)
    return noisy.clamp(0, 1) if clamp else noisy


@torch.no_grad()
def noise_to_signal(network: nn.Sequential, images: Tensor, noisy: Tensor) -> dict[str, float]:
    """The noise-to-signal ratio after each module of a network:

        E |f(x + e) - f(x)|^2 / E |f(x) - E f(x)|^2.

    A module that acts on noise as it acts on the signal does not change the ratio.

    Arguments:
        network: its modules are applied one after the other.
        images: (n, channels, height, width), without noise.
        noisy: the same images with noise.

    Returns:
        The ratio after each module, by its name; "images" is the ratio of the images themselves.
    """
    ratios = {"images": _ratio(images, noisy)}
    for name, module in network.named_children():
        images, noisy = module(images), module(noisy)
        ratios[name] = _ratio(images, noisy)
    return ratios


def _ratio(clean: Tensor, noisy: Tensor) -> float:
    spread = clean - clean.mean(dim=0)
    return ((noisy - clean).square().sum() / spread.square().sum()).item()
