"""A program for one of several processes: `python ranks.py TASK FOLDER`, with RANK and WORLD_SIZE set."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import resolvent as rs

TIGHT = rs.Stopping(rtol=1e-12, atol=1e-13)
LENGTH = 3
"""Training steps."""


class Parabola(nn.Module):
    """F(y) = scale y^2 + 1: for tau = 1 there is no solution if b is large."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((2,), 0.1))

    def forward(self, y: Tensor) -> Tensor:
        return self.scale * y.square() + 1


def layers() -> dict[str, nn.Module]:
    """Networks with two inputs, the same in all processes and for a single one."""
    torch.manual_seed(0)
    normalised = rs.fields.Bounded(rs.fields.MLP(2, 6, 1, bound=1.0, always=True), -4.0, 0.5)
    equilibrium = nn.Linear(2, 2)
    return {
        "store": rs.ThetaBlock(rs.fields.MLP(2, 6, 1), 0.5, 3, 1.0, stopping=TIGHT),
        "checkpoint": rs.ThetaBlock(rs.fields.MLP(2, 6, 1), 1.0, 3, 1.0, stopping=TIGHT, memory="checkpoint"),
        "normalised": rs.ThetaBlock(normalised, 0.5, 3, 1.0, stopping=TIGHT),
        "equilibrium": rs.Equilibrium(Tanh(equilibrium), stopping=TIGHT),
        "learned theta": rs.ThetaBlock(rs.fields.MLP(2, 6, 1), 0.5, 3, 1.0, stopping=TIGHT, learn_theta=True),
    }


class Tanh(nn.Module):
    """z = tanh(W z / 2 + x)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.5 * self.linear(z) + x)


def data() -> Tensor:
    """(steps, batch, 2) for all processes together."""
    return torch.randn(LENGTH, 6, 2, generator=torch.Generator().manual_seed(1))


def train(network: nn.Module, batches: Tensor) -> dict[str, Any]:
    """Losses, the gradients of each step, and the weights and buffers at the end."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses, gradients = [], []
    for x in batches:
        optimizer.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        gradients.append([weight.grad.clone() for weight in network.parameters() if weight.grad is not None])
    module = network.module if isinstance(network, DistributedDataParallel) else network
    return {"losses": torch.stack(losses), "gradients": gradients, "state": module.state_dict()}


def equal(rank: int, world: int, folder: Path) -> None:
    """Trains all networks on this process's share of the data, and writes what came of it."""
    shares = data().chunk(world, dim=1)
    results = {name: train(DistributedDataParallel(layer), shares[rank]) for name, layer in layers().items()}
    torch.save(results, folder / f"rank{rank}.pt")


def sharded(rank: int, world: int, folder: Path) -> None:
    """Trains networks whose blocks are sharded, and tries to run blocks whose fields are."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    shares = data().chunk(world, dim=1)
    results = {}
    whole = layers()
    del whole["learned theta"]  # torch does not shard a parameter of no dimension.
    for name, layer in whole.items():
        network = nn.Sequential(nn.Identity(), layer)
        fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
        found = train(network, shares[rank])
        found["gradients"] = [[part.full_tensor() for part in step] for step in found["gradients"]]
        found["state"] = {
            key: value.full_tensor() if hasattr(value, "full_tensor") else value
            for key, value in layer.state_dict().items()
        }
        results[name] = found
    torch.save(results, folder / f"rank{rank}.pt")
    for name, layer in layers().items():
        if name in ("store", "equilibrium"):
            fully_shard(layer.f if isinstance(layer, rs.Equilibrium) else layer.field, mesh=mesh)
            try:
                layer(shares[rank][0])
            except ValueError as error:
                (folder / f"refused {name} {rank}").write_text(str(error))


def failing(rank: int, world: int, folder: Path, x: Tensor, **options: Any) -> None:
    """A step in which the second process fails. None of them may reach the end."""
    block = rs.ThetaBlock(rs.Autonomous(Parabola(), rowwise=True), 1.0, 1, 1.0, **options)
    network = DistributedDataParallel(block)
    with rs.blocks.FailTogether(network) as ranks:
        loss = network(x).mean()
        ranks.check(loss)
        loss.backward()
    (folder / f"went on {rank}").touch()


def forward(rank: int, world: int, folder: Path) -> None:
    failing(rank, world, folder, torch.full((3, 2), 50.0 if rank == 1 else 0.1))


def backward(rank: int, world: int, folder: Path) -> None:
    few = rs.ImplicitAdjoint(solver=rs.Neumann(), stopping=rs.Stopping(rtol=1e-14, max_steps=1))
    options = {"adjoint": few} if rank == 1 else {}
    failing(rank, world, folder, torch.full((3, 2), 0.1), **options)


def infinite_loss(rank: int, world: int, folder: Path) -> None:
    network = DistributedDataParallel(layers()["store"])
    with rs.blocks.FailTogether(network) as ranks:
        loss = network(torch.ones(3, 2)).mean()
        ranks.check(loss * float("nan") if rank == 1 else loss)
        loss.backward()
    (folder / f"went on {rank}").touch()


def infinite_input(rank: int, world: int, folder: Path) -> None:
    failing(rank, world, folder, torch.full((3, 2), float("nan") if rank == 1 else 0.1))


def mask(rank: int, world: int, folder: Path) -> None:
    """The second process masks two samples and keeps in step."""
    policy = rs.Mask(most=1.0)
    block = rs.ThetaBlock(rs.Autonomous(Parabola(), rowwise=True), 1.0, 1, 1.0, on_failure=policy)
    network = DistributedDataParallel(block)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for step in range(LENGTH):
        x = torch.full((3, 2), 0.1 * (1 + step))
        if rank == 1 and step == 1:
            x[:2] = 50.0
        with rs.blocks.FailTogether(network) as ranks:
            optimizer.zero_grad()
            loss = network(x).mean()
            ranks.check(loss)
            loss.backward()
        optimizer.step()
    torch.save({"state": block.state_dict(), "failed": policy.failed}, folder / f"rank{rank}.pt")


def lightning(rank: int, world: int, folder: Path) -> None:
    """A training by Lightning in which the second process fails in its second step."""
    from resolvent_lab.fail_together import FailTogetherCallback
    from resolvent_lab.lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.block = rs.ThetaBlock(rs.Autonomous(Parabola(), rowwise=True), 1.0, 1, 1.0)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            large = self.global_rank == 1 and index == 1
            return self.block(torch.full_like(batch, 50.0) if large else batch).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = Trainer(
        max_epochs=1, accelerator="cpu", devices=world, strategy="ddp", callbacks=[FailTogetherCallback()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.full((12, 2), 0.1), batch_size=2))
    (folder / f"went on {rank}").touch()


TASKS: dict[str, Callable[[int, int, Path], None]] = {
    task.__name__: task for task in (equal, sharded, forward, backward, infinite_loss, infinite_input, mask)
}


def main(name: str, folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if name == "lightning":  # It makes its own process group.
        lightning(rank, world, folder)
        return
    # Started by hand the processes meet in a file, by torchrun at an address.
    meet = None if "MASTER_ADDR" in os.environ else f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world, timeout=timedelta(seconds=300))
    try:
        TASKS[name](rank, world, folder)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
