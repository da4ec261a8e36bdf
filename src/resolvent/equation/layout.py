"""The memory layout of states. Nothing depends on it but time: operations on tensors of one layout run along memory."""

import torch
from torch import Tensor

from resolvent.equation.torch_func import transforming

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def in_columns(x: Tensor) -> bool:
    """Whether (batch, rows, k) is stored with samples as columns, see `resolvent.equation.mixing`; the rows may be one
    that is expanded."""
    # The first test decides in most cases.
    columns = x.stride(0) == 1 and x.dim() == 3 and x.shape[0] > 1 and x.stride(1) in (0, x.shape[0])
    return columns and not transforming()


def memory_format(x: Tensor) -> torch.memory_format | None:
    """The format in which x is contiguous, with one sample after the other; None if there is none."""
    if x.is_contiguous():
        return torch.contiguous_format
    images = _CHANNELS_LAST.get(x.dim())
    return images if images is not None and x.is_contiguous(memory_format=images) else None
