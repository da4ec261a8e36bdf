"""An equilibrium transformer: one block, as deep as a sequence needs, sorts numbers.

    python examples/transformer.py [steps]

Each token is a number, and its label is its rank among those of the sequence.
"""

import sys

import torch
from torch import Tensor, nn

import resolvent as rs


class Block(nn.Module):
    """f(z, x): attention and a perceptron with layer norms; small branches keep it near a contraction."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        z = self.norms[0](x + 0.5 * self.attention(z, z, z, need_weights=False)[0])
        return self.norms[1](z + 0.5 * self.mlp(z))


def main(steps: int = 150) -> None:
    torch.manual_seed(0)
    tokens, size = 5, 32
    embed, head = nn.Sequential(nn.Linear(1, size), nn.Tanh(), nn.Linear(size, size)), nn.Linear(size, tokens)
    layer = rs.Equilibrium(Block(size, 4), stopping=rs.Stopping(rtol=1e-3))
    model = nn.ModuleList([embed, layer, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with rs.blocks.Monitor(model) as monitor:
        for _ in range(steps):
            numbers = torch.rand(64, tokens, 1)
            ranks = numbers[..., 0].argsort(1).argsort(1)
            scores = head(layer(4 * embed(numbers)))
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), ranks.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(monitor)
    numbers = torch.rand(200, tokens, 1)
    with torch.no_grad():
        right = head(layer(4 * embed(numbers))).argmax(2) == numbers[..., 0].argsort(1).argsort(1)
    print(f"{right.float().mean():.1%} of the ranks right")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
