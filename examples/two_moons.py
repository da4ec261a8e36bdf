"""Classify points on two half circles with five implicit layers.

python examples/two_moons.py
"""

import torch
from torch import nn

import resolvent as rs


def main() -> None:
    torch.manual_seed(0)
    angle, moon = torch.pi * torch.rand(500), torch.randint(2, (500,))
    side = 1 - 2 * moon
    x = torch.stack([side * angle.cos() + moon, side * angle.sin() + moon / 2], 1) + 0.1 * torch.randn(500, 2)

    # The field may be as stiff as it likes, and expands at most at rate 2: each layer has exactly one solution.
    field = rs.fields.OneSided(nn.Linear(4, 16), high=2.0)
    layers = rs.ThetaBlock(field, theta=0.5, num_steps=5, horizon=2.0)
    network = nn.Sequential(nn.Linear(2, 4), layers, nn.Linear(4, 2))

    optimizer = torch.optim.Adam(network.parameters(), lr=3e-2)
    for step in range(100):
        loss = nn.functional.cross_entropy(network(x), moon)
        optimizer.zero_grad()
        loss.backward()  # exact gradients by the implicit function theorem
        optimizer.step()
        if step % 25 == 24:
            print(f"step {step + 1:3}: loss {loss.item():.3f}")
    print(f"{(network(x).argmax(1) == moon).float().mean():.1%} right")
    print(rs.analysis.diagnose(layers, network[0](x[:16])))


if __name__ == "__main__":
    main()
