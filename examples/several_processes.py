"""Train an implicit network on several processes: each has a part of every batch, and gradients are averaged.

    torchrun --nproc-per-node=2 examples/several_processes.py --steps 40

A sample's solution does not depend on its batch, so that one process and several learn the same weights.
"""

import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import resolvent as rs


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on two half circles, and which of them."""
    angle, moon = torch.pi * torch.rand(count), torch.randint(2, (count,))
    side = 1 - 2 * moon
    x = torch.stack([side * angle.cos() + moon, side * angle.sin() + moon / 2], 1)
    return x + 0.1 * torch.randn_like(x), moon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps: int = parser.parse_args().steps

    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same weights and data in every process
    field = rs.fields.OneSided(nn.Linear(4, 16), high=2.0)
    block = rs.ThetaBlock(field, theta=0.5, num_steps=5, horizon=2.0)
    network = DistributedDataParallel(nn.Sequential(nn.Linear(2, 4), block, nn.Linear(4, 2)))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-2)
    x, y = data(400)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(x[rank::processes]), y[rank::processes])
        optimizer.zero_grad()
        loss.backward()  # averages the gradients of all processes
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / processes)
    if rank == 0:
        print(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
