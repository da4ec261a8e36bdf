"""Where in a network noise gets the better of the signal."""

import torch
from torch import Tensor, nn


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
