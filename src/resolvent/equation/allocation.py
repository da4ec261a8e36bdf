"""Memory that is freed between the steps of a solve is kept for the next tensors."""

from functools import cache

import torch

_LARGEST_BLOCK = 31 << 20  # bytes; glibc never raises its threshold beyond 32 MiB.

LARGE_STATE = 1 << 17  # bytes; glibc first returns freed blocks of this size to the system.


@cache
def keep_freed_memory() -> None:
    """Lets the C library reuse freed blocks of up to 31 MiB, once per process.

    A solve allocates and frees tensors like its state at each step. By default glibc returns such blocks to the system
    when they are freed, and to have them back, zeroed page by page, takes longer than a convolution that fills them. It
    stops doing so for blocks up to the largest that was ever freed: so one such block is allocated and freed here,
    as any program does that frees a tensor of this size. Its pages are never touched. Other allocators take no notice.

    Reference: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8, device="cpu")
