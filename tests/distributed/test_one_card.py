"""Sharded blocks on a GPU, with nccl in one process. Also a program: `python test_one_card.py`."""

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks import data, layers, train
from resolvent.blocks import FailTogether


def sharded(folder: Path) -> dict[str, float]:
    """The largest relative difference of a gradient or weight from that of the network that is not sharded, by name."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl", init_method=f"file://{folder / 'meeting'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cuda", (1,))
        batches = data().double().cuda()
        found = {}
        for name, layer in layers().items():
            if name == "learned theta":  # torch does not shard a parameter of no dimension.
                continue
            alone = train(layer.double().cuda(), batches)
            network = nn.Sequential(nn.Identity(), layers()[name].double().cuda())
            fully_shard(network[1], mesh=mesh)
            fully_shard(network, mesh=mesh)
            with FailTogether(network) as ranks:
                ranks.check(network(batches[0]).sum())
            mine = train(network, batches)
            steps = zip(mine["gradients"], alone["gradients"], strict=True)
            found[name] = max(
                difference(a.full_tensor(), b) for one, two in steps for a, b in zip(one, two, strict=True)
            )
        refused(mesh)
        return found
    finally:
        dist.destroy_process_group()


def refused(mesh: object) -> None:
    """A block with a sharded field says what to do."""
    from torch.distributed.fsdp import fully_shard

    block = layers()["store"].double().cuda()
    fully_shard(block.field, mesh=mesh)
    with pytest.raises(ValueError, match="Apply fully_shard to the block"):
        block(data()[0].double().cuda())


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")
def test_sharded_blocks_train_like_whole_ones_on_a_card(tmp_path: Path) -> None:
    assert max(sharded(tmp_path).values()) < 1e-6


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, worst in sharded(Path(place)).items():
            print(f"{name}: gradients differ by {worst:.1e} at most")
