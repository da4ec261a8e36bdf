"""Throw a ball at a target: gradients through the time at which it lands.

    python examples/throw.py

The flight has drag and ends with an event, height zero. Its end point is differentiable in angle and speed.
"""

import torch
from torch import Tensor

import resolvent as rs
from resolvent.schemes import tableaux

TARGET = 20.0


def flight(t: Tensor, y: Tensor) -> Tensor:
    """y = (distance, height, and their speeds)."""
    speeds = y[:, 2:]
    drag = 0.02 * speeds * speeds.norm(dim=1, keepdim=True)
    weight = torch.tensor([0.0, 9.81])
    return torch.cat([speeds, -drag - weight], dim=1)


def landing(angle: Tensor, speed: Tensor) -> Tensor:
    start = torch.stack(
        [torch.zeros_like(angle), torch.full_like(angle, 1.8), speed * angle.cos(), speed * angle.sin()]
    )
    solution = rs.odeint(
        flight, start[None], [0.0, 20.0], tableaux.BOGACKI_SHAMPINE3, event=lambda t, y: y[:, 1], rtol=1e-4
    )
    return solution.final[0, 0]


def main() -> None:
    angle, speed = torch.tensor(0.3, requires_grad=True), torch.tensor(12.0, requires_grad=True)
    optimizer = torch.optim.Adam([angle, speed], lr=0.1)
    for _ in range(60):
        distance = landing(angle, speed)
        # Hit the target with as little speed as possible.
        loss = (distance - TARGET).square() + 0.02 * speed.square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    reached = landing(angle, speed).item()
    print(f"angle {angle.rad2deg().item():.1f} degrees, speed {speed.item():.2f} m/s: lands at {reached:.2f} m")


if __name__ == "__main__":
    main()
