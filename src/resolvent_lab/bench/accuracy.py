"""Accuracy of states and gradients: the same check for all contenders, in double precision."""

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab.bench.layers import stage_fraction
from resolvent_lab.bench.task import Task, blocks


@torch.no_grad()
def residual(task: Task, states: Sequence[Tensor]) -> float:
    """The largest |z - x - theta h F(z)| / max(|x|, |z|) over layers and samples, z = (1 - theta) x + theta y."""
    model = copy.deepcopy(task.model).double().eval()
    pairs = zip(blocks(model).values(), states, strict=True)
    return max(_of_block(block, states.double()) for block, states in pairs)


def _of_block(block: rs.ThetaBlock, states: Tensor) -> float:
    theta, h = float(block.theta), float(block.step_size)
    worst = 0.0
    for n, (x, y) in enumerate(pairwise(states)):
        z = (1 - theta) * x + theta * y
        defect = z - x - theta * h * block.field((n + stage_fraction(theta)) * h, z)
        scale = torch.maximum(_norm(x), _norm(z))
        worst = max(worst, float((_norm(defect) / scale).max()))
    return worst


def gradient_error(gradients: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """|g - g_exact| / |g_exact|, for the gradients of all parameters as one vector."""
    found, right = (torch.cat([part.double().flatten() for part in parts]) for parts in (gradients, exact))
    return float((found - right).norm() / right.norm())


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)
