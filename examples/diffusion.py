"""Find the diffusion and the reaction rate of u_t = d u_xx + k (u - u^3) from two snapshots.

    python examples/diffusion.py

Diffusion on 200 points is stiff and linear: KENCARP4 solves for it by a Fourier transform; the rest is explicit.
"""

import torch
from torch import Tensor

import resolvent as rs
from resolvent.fields import FourierPart
from resolvent.schemes import tableaux

POINTS = 200


class AllenCahn(rs.fields.Field):
    rowwise = autonomous = True

    def __init__(self, diffusion: Tensor, rate: Tensor) -> None:
        super().__init__()
        self.rate = rate
        self.laplacian = FourierPart(diffusion * FourierPart.laplacian((POINTS,), spacing=1 / POINTS).symbol)

    @property
    def linear_part(self) -> FourierPart:
        return self.laplacian

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        return self.laplacian.product(y) + self.rate * (y - y**3)


def states(logs: Tensor, start: Tensor) -> Tensor:
    field = AllenCahn(*logs.exp())
    return rs.odeint(field, start, [0.0, 0.1, 0.3], tableaux.KENCARP4, rtol=1e-4).states[1:]


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    x = torch.arange(POINTS) / POINTS
    waves = torch.stack([torch.sin(2 * torch.pi * x), torch.sin(6 * torch.pi * x) + 0.5 * torch.cos(2 * torch.pi * x)])
    true = torch.tensor([0.01, 5.0]).log()
    data = states(true, waves)
    data = data + 0.01 * torch.randn_like(data)

    logs = torch.tensor([0.05, 1.0]).log().requires_grad_()
    optimizer = torch.optim.Adam([logs], lr=0.1)
    for _ in range(60):
        loss = (states(logs, waves) - data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("diffusion {:.4f} (true 0.0100), rate {:.3f} (true 5.000)".format(*logs.exp().tolist()))


if __name__ == "__main__":
    main()
