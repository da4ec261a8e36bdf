"""Rules for the functions in the graph of a module: what they make of values with one row per sample.

A rule takes the arguments of its function. It returns the value of the result, or refuses: a sum over the features of a
sample is fine, one over the batch is not. An argument that a rule does not know is refused, too.
"""

import operator
from collections.abc import Callable
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from resolvent.fields.rows import (
    BatchSize,
    Length,
    Rows,
    Several,
    Shape,
    expect,
    is_constant,
    number,
    numbers,
    rows_of,
)


def _entrywise(*arguments: Any, **named: Any) -> Any:
    """Functions of each entry, which broadcast."""
    everything = [*arguments, *named.values()]
    rows = [a for a in everything if isinstance(a, Rows)]
    others = [a for a in everything if not isinstance(a, Rows | Length)]
    expect(is_constant(others))
    if not rows:
        return Length()
    # Of tensors with different ranks, the batch of one could meet the features of another.
    expect(all(a == rows[0] for a in rows) and all(map(rows[0].takes, others)))
    return rows[0]


def _chosen(condition: Any, x: Any, other: Any) -> Any:
    return _entrywise(condition, x, other)


def _along(x: Any, dim: Any, *_: Any, **__: Any) -> Rows:
    """Functions along dimensions that keep the shape, such as a softmax."""
    rows = rows_of(x)
    expect(numbers(dim) and all(map(rows.inside, numbers(dim))))
    return rows


def _normalized(x: Any, p: Any = 2.0, dim: Any = 1, **_: Any) -> Rows:
    return _along(x, dim)


def _halved(x: Any, dim: Any = -1) -> Rows:
    return _along(x, dim)


def _flipped(x: Any, *positions: Any, dims: Any = ()) -> Rows:
    return _along(x, positions if len(positions) > 1 else (*positions, dims)[0])


def _shifted(x: Any, shifts: Any, dims: Any) -> Rows:
    return _along(x, dims)


def _transposed(x: Any, dim0: Any, dim1: Any) -> Rows:
    return _along(x, (dim0, dim1))


def _permuted(x: Any, *dims: Any) -> Rows:
    first, *others = numbers(dims if len(dims) > 1 else dims[0])
    expect(first == 0)
    return _along(x, others)


def _reduced(x: Any, dim: Any, keepdim: Any = False, **_: Any) -> Rows:
    """Sums and the like."""
    rows = _along(x, dim)
    expect(isinstance(keepdim, bool))
    return rows if keepdim else rows.grown(-len(numbers(dim)))


def _spread(x: Any, dim: Any, *, keepdim: Any = False, **_: Any) -> Rows:
    """Variances, whose further arguments may be flags of other meanings."""
    return _reduced(x, dim, keepdim)


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: Any = False) -> Rows:
    return _reduced(x, dim, keepdim)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False) -> Rows:
    return _reduced(x, dim, keepdim)


def _layer_norm(x: Any, normalized_shape: Any, *weights: Any, **named: Any) -> Rows:
    rows = rows_of(x)
    expect(rows.ends_inside(len(numbers(normalized_shape))) and is_constant([*weights, *named.values()]))
    return rows


def _padded(x: Any, pad: Any, mode: Any = "constant", value: Any = None) -> Rows:
    rows = rows_of(x)
    expect(rows.ends_inside(len(numbers(pad)) // 2) and is_constant([mode, value]))
    return rows


def _like_all(tensors: Any) -> Rows:
    """What several tensors are, if they are all the same."""
    parts = [tensors.each] if isinstance(tensors, Several) else tensors
    expect(isinstance(parts, list | tuple) and parts and all(part == parts[0] for part in parts))
    return rows_of(parts[0])


def _joined(tensors: Any, dim: Any = 0) -> Rows:
    return _along(_like_all(tensors), dim)


def _stacked(tensors: Any, dim: Any = 0) -> Rows:
    return _along(_like_all(tensors).grown(1), dim)


def _unsqueezed(x: Any, dim: Any) -> Rows:
    return _along(rows_of(x).grown(1), dim)


def _split(x: Any, parts: Any, dim: Any = 0) -> Several:
    return Several(_along(x, dim))


def _unbound(x: Any, dim: Any = 0) -> Several:
    return Several(_reduced(x, dim))


def _flattened(x: Any, start_dim: Any = 0, end_dim: Any = -1) -> Rows:
    rows = _along(x, (start_dim, end_dim))
    if (start_dim, end_dim) == (1, -1):
        return Rows(2, relative=False)
    expect((start_dim > 0) == (end_dim > 0))
    return rows.grown(start_dim - end_dim)


def _unflattened(x: Any, dim: Any, sizes: Any) -> Rows:
    expect(isinstance(sizes, list | tuple) and all(isinstance(size, int | Length) for size in sizes))
    return _along(x, dim).grown(len(sizes) - 1)


def _reshaped(x: Any, *shape: Any) -> Rows:
    rows_of(x)
    sizes = shape[0] if len(shape) == 1 else shape
    if isinstance(sizes, Shape):
        return sizes.of
    # With the number of samples in front, no entry changes its row.
    expect(isinstance(sizes, list | tuple) and sizes and isinstance(sizes[0], BatchSize))
    expect(all(isinstance(size, int | Length) for size in sizes[1:]))
    return Rows(len(sizes), relative=False)


def _reshaped_as(x: Any, other: Any) -> Rows:
    rows_of(x)
    return rows_of(other)


def _product(x: Any, y: Any) -> Rows:
    if isinstance(x, Rows) and isinstance(y, Rows):
        expect(x == y and x.least >= 3)
        return x
    if isinstance(x, Rows):
        expect(isinstance(y, Tensor) and y.dim() in (1, 2) and x.least >= 2)
        return x.grown(y.dim() - 2)
    rows = rows_of(y)
    expect(isinstance(x, Tensor) and x.dim() == 2 and rows.least >= 3)
    return rows


def _linear(x: Any, *weights: Any, **named: Any) -> Rows:
    rows = rows_of(x)
    expect(rows.least >= 2 and is_constant([*weights, *named.values()]))
    return rows


def _convolved(x: Any, kernel: Any, *others: Any, **named: Any) -> Rows:
    rows = rows_of(x)
    # With one dimension less, the first would be that of the channels.
    expect(isinstance(kernel, Tensor) and rows.ends_inside(kernel.dim() - 1))
    return _linear(x, *others, **named)


def _attended(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0, **options: Any) -> Rows:
    rows = rows_of(query)
    expect(rows == key == value and rows.least >= 3 and rows.takes(attn_mask))
    expect(dropout_p == 0 and is_constant([attn_mask, *options.values()]))
    return rows


def _summed(equation: Any, *operands: Any) -> Rows:
    """`torch.einsum`: one letter stands for the batch, in the first place of all rows and of the result."""
    expect(isinstance(equation, str))
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    expect(arrow and "." not in inputs and len(terms) == len(operands))
    batch = result[:1]
    expect(batch and batch not in result[1:])
    found = []
    for term, operand in zip(terms, operands, strict=True):
        if isinstance(operand, Rows):
            expect(term[:1] == batch and batch not in term[1:])
            found.append(operand.grown(len(result) - len(term)))
        else:
            expect(is_constant(operand) and batch not in term)
    return found[0]


def _item(x: Any, index: Any) -> Any:
    if isinstance(x, Several):
        expect(isinstance(index, slice | int))
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
    bounds = [bound for part in slices for bound in (part.start, part.stop, part.step)]
    expect(all(bound is None or isinstance(bound, int | Length) for bound in bounds))
    expect(all(isinstance(part, slice) or type(part) is int for part in named))
    expect(sum(isinstance(part, EllipsisType) for part in index) <= 1)
    if isinstance(index[0], EllipsisType):
        expect(len(named) < rows.least)
    else:
        expect(index[0] == slice(None, None, None))
    return rows.grown(index.count(None) - (len(named) - len(slices)))


def _attribute(x: Any, name: Any) -> Any:
    if name == "shape":
        return Shape(rows_of(x))
    expect(name == "mT" and rows_of(x).least >= 3)
    return x


def _size(x: Any, dim: Any = None) -> Any:
    return Shape(rows_of(x)) if dim is None else _item(Shape(rows_of(x)), dim)


_ENTRYWISE = """
    abs add addcdiv addcmul arctan asinh atan atan2 ceil celu clamp clamp_max clamp_min clone contiguous cos cosh
    detach div double elu eq erf erfc exp exp2 expm1 float floor floordiv ge gelu gt half hardshrink hardsigmoid
    hardswish hardtanh hypot iadd imul isfinite isub itruediv le leaky_relu lerp log log10 log1p log2 logical_and
    logical_not logical_or logit logsigmoid lt masked_fill maximum minimum mish mul multiply ne neg ones_like pow
    reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinc sinh softplus softshrink
    softsign sqrt square sub subtract tan tanh tanhshrink to truediv type_as zeros_like
"""
_OTHERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "cumsum", "cumprod", "logcumsumexp"), _along),
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "logsumexp"), _reduced),
    **dict.fromkeys(("var", "std"), _spread),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("cat", "concat", "concatenate"), _joined),
    **dict.fromkeys(("chunk", "split", "tensor_split"), _split),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transposed),
    **dict.fromkeys(("reshape", "view"), _reshaped),
    **dict.fromkeys(("reshape_as", "view_as"), _reshaped_as),
    **dict.fromkeys(("matmul", "bmm"), _product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolved),
    "einsum": _summed,
    "flatten": _flattened,
    "flip": _flipped,
    "getattr": _attribute,
    "getitem": _item,
    "glu": _halved,
    "linear": _linear,
    "norm": _norm,
    "normalize": _normalized,
    "pad": _padded,
    "permute": _permuted,
    "roll": _shifted,
    "scaled_dot_product_attention": _attended,
    "size": _size,
    "stack": _stacked,
    "unbind": _unbound,
    "unflatten": _unflattened,
    "unsqueeze": _unsqueezed,
    "vector_norm": _vector_norm,
    "where": _chosen,
}

RULES: dict[str, Callable[..., Any]] = {**dict.fromkeys(_ENTRYWISE.split(), _entrywise), **_OTHERS}
"""By the name of a function, or of a method, which has its tensor as the first argument."""

NAMES: dict[Any, str] = {getattr: "getattr"} | {
    function: name
    for place in (torch, functional, torch.linalg, operator)
    for name in RULES
    if callable(function := getattr(place, name, None))
}
"""The names of functions."""

CHANGES_ITS_ARGUMENT = frozenset(("iadd", "imul", "isub", "itruediv"))
