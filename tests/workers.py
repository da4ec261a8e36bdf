"""A data set that solves, for the workers of a data loader: those that are spawned import it by name."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

import resolvent as rs


class Solved(Dataset[Tensor]):
    """Samples that are the outputs of a block, computed in a worker."""

    def __init__(self, block: rs.ThetaBlock, x: Tensor) -> None:
        self.block, self.x = block, x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.block(self.x[index : index + 1])[0]
