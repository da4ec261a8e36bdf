"""Layers around a module that is proved to treat samples alone, beside the same layers where nothing is declared."""

import torch
from torch import Tensor, nn

import resolvent as rs


def assert_layers_agree(module: nn.Module, x: Tensor, layers: int, horizon: float, mode: str = "auto") -> None:
    """States and all gradients, in double precision."""
    found, stopping = [], rs.Stopping(rtol=1e-12, atol=1e-12)
    for rowwise in (None, False):
        field = rs.Autonomous(module, rowwise=rowwise)
        block = rs.ThetaBlock(field, 0.5, layers, horizon, stopping=stopping, mode=mode).train(module.training)
        leaf = x.clone().requires_grad_()
        y = block(leaf)
        found.append((y, *torch.autograd.grad(y.square().sum(), (leaf, *module.parameters()), allow_unused=True)))
    for proved, plain in zip(*found, strict=True):
        if plain is None:
            assert proved is None
        else:
            torch.testing.assert_close(proved, plain, rtol=1e-7, atol=1e-8)
