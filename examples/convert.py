"""Make a trained residual network with batch norm implicit, and train it on.

    python examples/convert.py

Theta rises from 0.1 to 0.5. Batch statistics are frozen: they would couple the samples of a batch.
"""

import torch
from torch import Tensor, nn

import resolvent as rs


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * torch.relu(self.norm(self.conv(x)))


def train(network: nn.Module, images: Tensor, labels: Tensor, steps: int) -> float:
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    labels = torch.randint(4, (64,))  # a bright quarter of a noisy image
    images = 0.5 * torch.randn(64, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[:, row : row + 4, column : column + 4] += 1
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), Residual(8), Residual(8), nn.Flatten(), nn.Linear(128, 4)
    )
    print(f"explicit:    loss {train(network, images, labels, 30):.4f}")

    for theta in (0.1, 0.3, 0.5):
        implicit = rs.make_implicit(network, theta, predicate=lambda name, module: isinstance(module, Residual))
        for module in implicit.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        print(f"theta = {theta}: loss {train(implicit, images, labels, 10):.4f}")  # the weights are those of `network`


if __name__ == "__main__":
    main()
