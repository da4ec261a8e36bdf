"""Norms, products, shapes and memory layouts: every function treats each row of a batch (batch, *shape) alone."""

import math

import torch
from torch import Tensor

from resolvent.equation.torch_func import transforming

# Below this many numbers `where` is cheaper than testing `all()`.
_MIN_SIZE_TO_TEST = 1 << 12
_MOST_AS_COLUMN = 16
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


def take(x: Tensor, samples: Tensor) -> Tensor:
    """The `samples` of (batch, ...), stored as x is: an index would lose the order of columns."""
    if not _by_sample_last(x):
        return x[samples]
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).index_select(x.dim() - 1, samples).permute(order)


def put(x: Tensor, samples: Tensor, part: Tensor) -> Tensor:
    """A copy of (batch, ...) with other `samples`, stored as x is."""
    if not _by_sample_last(x):
        return x.index_copy(0, samples, part)
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).index_copy(x.dim() - 1, samples, part.permute(order)).permute(order)


def _by_sample_last(x: Tensor) -> bool:
    return x.stride(0) == 1 and x.dim() > 2 and x.shape[0] > 1 and not transforming()


def flat(x: Tensor) -> Tensor:
    """(batch, *shape) to (batch, n)."""
    return x if x.dim() == 2 else x.reshape(x.shape[0], math.prod(x.shape[1:]))


def length(x: Tensor) -> Tensor:
    """The l2 norm of each sample: (batch, *shape) to (batch,)."""
    if x.dim() == 2:
        return torch.linalg.vector_norm(x, dim=1)
    if in_columns(x) and not torch.is_grad_enabled():
        columns = x.permute(2, 1, 0).flatten(0, 1)
        return (columns * columns).sum(0).sqrt()  # A norm over the first dimension takes forty times as long.
    # Not of `flat(x)`, which copies a state that is laid out with channels last.
    return x.abs() if x.dim() == 1 else torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())))


def row_lengths(x: Tensor) -> Tensor:
    """The l2 norm of every row: (batch, rows, *shape) to (batch, rows)."""
    if in_columns(x) and not torch.is_grad_enabled():
        columns = x.permute(2, 1, 0)
        return (columns * columns).sum(0).sqrt().t()
    return torch.linalg.vector_norm(x.flatten(2), dim=2)


def rms(x: Tensor) -> Tensor:
    """The root mean square of each sample: (batch, *shape) to (batch,)."""
    return length(x) / math.sqrt(math.prod(x.shape[1:]))


def extremes(x: Tensor) -> tuple[float, float]:
    """The smallest and the largest number; both NaN if there is one, and zero if there are no numbers. Waits for the
    device."""
    if x.numel() == 0:
        return 0.0, 0.0
    least, most = x.aminmax()
    return (least.item(), most.item()) if x.is_cpu else tuple(torch.stack([least, most]).tolist())


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each sample: (batch,)."""
    product = x * y
    return product if x.dim() == 1 else product.sum(tuple(range(1, x.dim())))


def products(rows: Tensor, vector: Tensor) -> Tensor:
    """The inner products of (batch, n) with every row of (batch, count, n): (batch, count)."""
    vector = flat(vector)
    # As a column, a vector of more numbers takes up to fifteen times as long in some versions of MKL.
    if rows.shape[2] <= _MOST_AS_COLUMN:
        return torch.bmm(rows, vector[:, :, None]).squeeze(2)
    return (vector[:, None] @ rows.mT).squeeze(1)


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """(batch,) values, shaped to multiply (batch, *shape)."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def select(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` for the samples (batch,) that are chosen, else `no`.

    Usually all samples agree. If testing that is cheaper than a copy, one of the two is returned without copying.
    """
    # A tracer's tensors are of a class of their own. They have no values to test.
    traced = type(chosen) is not Tensor or transforming()
    if not traced and yes.numel() >= _MIN_SIZE_TO_TEST and yes.device.type == "cpu":
        if bool(chosen.all()):
            return yes
        if not bool(chosen.any()):
            return no
    return torch.where(per_sample(chosen, yes), yes, no)


def power_of_two(x: Tensor) -> Tensor:
    """(batch,), the powers of two just below the largest entry of each sample: to divide by them does not round."""
    size = x.abs()
    largest = size if x.dim() == 1 else size.amax(tuple(range(1, x.dim())))
    kind = torch.finfo(x.dtype)
    return torch.exp2(torch.floor(torch.log2(largest.clamp(kind.tiny, kind.max))))


def unpatterned(like: Tensor) -> Tensor:
    """A fixed vector (1, *shape) of unit root mean square, the cosines of equidistributed phases: no structure of a
    state or a matrix is likely to favour it."""
    shape = like.shape[1:]
    phases = torch.arange(shape.numel(), dtype=torch.float64, device=like.device) * 2.399963229728653
    return (2**0.5 * phases.cos()).to(like.dtype).reshape(1, *shape)
