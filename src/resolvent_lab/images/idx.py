"""The files of MNIST: a header with the type and the sizes, then the numbers; packed by gzip or not."""

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

_BYTES = 0x08
"""The type of the data: unsigned bytes."""


def read_idx(path: Path) -> Tensor:
    """The array in a file, uint8.

    Reference: LeCun, Cortes and Burges, The MNIST database of handwritten digits, the IDX file format.
    """
    try:
        content = path.read_bytes()
        data = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}): remove it and fetch it again.") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _BYTES:
        raise ValueError(f"{path} does not begin like an IDX file of bytes: remove it and fetch it again.")
    dims = data[3]
    start = 4 + 4 * dims
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    if len(data) != start + math.prod(sizes):
        raise ValueError(
            f"{path} has {len(data)} bytes, but an array {tuple(sizes)} takes {start + math.prod(sizes)}: remove it "
            "and fetch it again."
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).reshape(sizes)
