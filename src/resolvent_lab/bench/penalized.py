"""Row B11: the recommended recipe for images, with its penalty on the sensitivity to the input."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rs
from resolvent_lab.bench.task import Task

PENALTY = rs.regularizers.Sensitivity(0.5, "softmax")


class WithTangents(nn.Module):
    """Maps images and directions to logits and their derivatives in these directions, as one pass to record."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        logits, tangents, *_ = rs.jvp(self.network, images, directions)
        return logits, tangents


def recipe(device: str, count: int = 50) -> Task:
    """`implicit_resnet18` as recommended: theta = 1/2, F = S*G, twelve solver steps in a CUDA graph."""
    torch.manual_seed(0)
    network = rs.models.implicit_resnet18(0.5, normalization="free", scale=0.5, step_size=2.0, stem_gain=0.3)
    images = torch.rand(count, 1, 28, 28, device=device)
    batch = (images, torch.randn_like(images), torch.randint(10, (count,), device=device))

    def loss(model: Any, batch: Any) -> Tensor:
        images, directions, labels = batch
        logits, tangents = model(images, directions)
        return F.cross_entropy(logits, labels, label_smoothing=0.1) + PENALTY.of(logits, tangents)

    return Task(
        "B11",
        "ResNet-18 with penalty",
        0.5,
        1e-3,
        WithTangents(network).to(device),
        batch,
        loss,
        inputs=2,
        graph_steps=12,
        states=_states,
    )


def _states(model: Any, batch: Any) -> list[Tensor]:
    with torch.no_grad():
        return [each.states for each in rs.jvp(model.network, *batch[:2]).trajectories]
