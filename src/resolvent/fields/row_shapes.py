"""Rules for functions that choose, split, join and reshape the features of samples; see `row_rules`."""

from types import EllipsisType
from typing import Any

from resolvent.fields.rows import BatchSize, Length, Rows, Several, Shape, expect, is_fixed, number, numbers, rows_of


def along(x: Any, dim: Any, *settings: Any, **named: Any) -> Rows:
    """Functions along dimensions that keep the shape, such as a softmax."""
    rows = rows_of(x)
    expect(numbers(dim) and all(map(rows.inside, numbers(dim))))
    expect(is_fixed([*settings, *named.values()]))
    return rows


def reduced(x: Any, dim: Any, keepdim: Any = False, **named: Any) -> Rows:
    """Sums and the like."""
    rows = along(x, dim, **named)
    expect(isinstance(keepdim, bool))
    return rows if keepdim else rows.grown(-len(numbers(dim)))


def extreme(x: Any, dim: Any, keepdim: Any = False) -> Several:
    """The largest or smallest entries, and their places."""
    return Several(reduced(x, dim, keepdim))


def transposed(x: Any, dim0: Any, dim1: Any) -> Rows:
    return along(x, (dim0, dim1))


def permuted(x: Any, *dims: Any) -> Rows:
    first, *others = numbers(dims if len(dims) > 1 else dims[0])
    expect(first == 0)
    return along(x, others)


def _like_all(tensors: Any) -> Rows:
    """What several tensors are, if they are all the same."""
    parts = [tensors.each] if isinstance(tensors, Several) else tensors
    expect(isinstance(parts, list | tuple) and parts and all(part == parts[0] for part in parts))
    return rows_of(parts[0])


def joined(tensors: Any, dim: Any = 0) -> Rows:
    return along(_like_all(tensors), dim)


def stacked(tensors: Any, dim: Any = 0) -> Rows:
    return along(_like_all(tensors).grown(1), dim)


def unsqueezed(x: Any, dim: Any) -> Rows:
    return along(rows_of(x).grown(1), dim)


def split(x: Any, parts: Any, dim: Any = 0) -> Several:
    return Several(along(x, dim, parts))


def unbound(x: Any, dim: Any = 0) -> Several:
    return Several(reduced(x, dim))


def flattened(x: Any, start_dim: Any = 0, end_dim: Any = -1) -> Rows:
    rows = along(x, (start_dim, end_dim))
    if (start_dim, end_dim) == (1, -1):
        return Rows(2, relative=False)
    expect((start_dim > 0) == (end_dim > 0))
    return rows.grown(start_dim - end_dim)


def unflattened(x: Any, dim: Any, sizes: Any) -> Rows:
    expect(isinstance(sizes, list | tuple) and all(isinstance(size, int | Length) for size in sizes))
    return along(x, dim).grown(len(sizes) - 1)


def reshaped(x: Any, *shape: Any) -> Rows:
    rows_of(x)
    sizes = shape[0] if len(shape) == 1 else shape
    if isinstance(sizes, Shape):
        return sizes.of
    # With the number of samples in front, no entry changes its row.
    expect(isinstance(sizes, list | tuple) and sizes and isinstance(sizes[0], BatchSize))
    expect(all(isinstance(size, int | Length) for size in sizes[1:]))
    return Rows(len(sizes), relative=False)


def reshaped_as(x: Any, other: Any) -> Rows:
    rows_of(x)
    return rows_of(other)


def item(x: Any, index: Any) -> Any:
    if isinstance(x, Several):
        expect(isinstance(index, slice | int) and is_fixed(index))
        return x if isinstance(index, slice) else x.each
    if isinstance(x, list | tuple):
        return x[number(index)]
    if isinstance(x, Shape):
        expect(number(index) == 0 or x.of.inside(index))
        return BatchSize() if index == 0 else Length()
    return _part(rows_of(x), list(index) if isinstance(index, list | tuple) else [index])


def _part(rows: Rows, index: list[Any]) -> Rows:
    """Some of the features of every sample: the index begins with all rows, or leaves the first dimension out."""
    named = [part for part in index if not (part is None or isinstance(part, EllipsisType))]
    slices = [part for part in named if isinstance(part, slice)]
    expect(is_fixed(slices))
    expect(all(isinstance(part, slice) or type(part) is int for part in named))
    expect(sum(isinstance(part, EllipsisType) for part in index) <= 1)
    if isinstance(index[0], EllipsisType):
        expect(len(named) < rows.least)
    else:
        expect(index[0] == slice(None, None, None))
    return rows.grown(index.count(None) - (len(named) - len(slices)))


def attribute(x: Any, name: Any) -> Any:
    if isinstance(x, Several) and name in ("values", "indices"):
        return x.each
    if name == "shape":
        return Shape(rows_of(x))
    expect(name == "mT" and rows_of(x).least >= 3)
    return x


def size(x: Any, dim: Any = None) -> Any:
    return Shape(rows_of(x)) if dim is None else item(Shape(rows_of(x)), dim)
