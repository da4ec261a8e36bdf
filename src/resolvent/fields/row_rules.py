"""Rules for the functions in the graph of a module: what they make of values with one row per sample.

A rule takes the arguments of its function. It returns the value of the result, or refuses: a sum over the features of a
sample is fine, one over the batch is not. An argument that a rule does not know is refused, too.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from resolvent.fields.row_shapes import (
    along,
    attribute,
    flattened,
    item,
    joined,
    permuted,
    reduced,
    reshaped,
    reshaped_as,
    size,
    split,
    stacked,
    transposed,
    unbound,
    unflattened,
    unsqueezed,
)
from resolvent.fields.rows import Length, Rows, expect, is_constant, numbers, rows_of


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


def _normalized(x: Any, p: Any = 2.0, dim: Any = 1, **_: Any) -> Rows:
    return along(x, dim)


def _halved(x: Any, dim: Any = -1) -> Rows:
    return along(x, dim)


def _flipped(x: Any, *positions: Any, dims: Any = ()) -> Rows:
    return along(x, positions if len(positions) > 1 else (*positions, dims)[0])


def _shifted(x: Any, shifts: Any, dims: Any) -> Rows:
    return along(x, dims)


def _spread(x: Any, dim: Any, *, keepdim: Any = False, **_: Any) -> Rows:
    """Variances, whose further arguments may be flags of other meanings."""
    return reduced(x, dim, keepdim)


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: Any = False) -> Rows:
    return reduced(x, dim, keepdim)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False) -> Rows:
    return reduced(x, dim, keepdim)


def _layer_norm(x: Any, normalized_shape: Any, *weights: Any, **named: Any) -> Rows:
    rows = rows_of(x)
    expect(rows.ends_inside(len(numbers(normalized_shape))) and is_constant([*weights, *named.values()]))
    return rows


def _padded(x: Any, pad: Any, mode: Any = "constant", value: Any = None) -> Rows:
    rows = rows_of(x)
    expect(rows.ends_inside(len(numbers(pad)) // 2) and is_constant([mode, value]))
    return rows


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


_ENTRYWISE = """
    abs add addcdiv addcmul arctan asinh atan atan2 ceil celu clamp clamp_max clamp_min clone contiguous cos cosh
    detach div double elu eq erf erfc exp exp2 expm1 float floor floordiv ge gelu gt half hardshrink hardsigmoid
    hardswish hardtanh hypot iadd imul isfinite isub itruediv le leaky_relu lerp log log10 log1p log2 logical_and
    logical_not logical_or logit logsigmoid lt masked_fill maximum minimum mish mod mul multiply ne neg ones_like pow
    reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinc sinh softplus softshrink
    softsign sqrt square sub subtract tan tanh tanhshrink to truediv type_as zeros_like
"""
_OTHERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "cumsum", "cumprod", "logcumsumexp"), along),
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "logsumexp"), reduced),
    **dict.fromkeys(("var", "std"), _spread),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("cat", "concat", "concatenate"), joined),
    **dict.fromkeys(("chunk", "split", "tensor_split"), split),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), transposed),
    **dict.fromkeys(("reshape", "view"), reshaped),
    **dict.fromkeys(("reshape_as", "view_as"), reshaped_as),
    **dict.fromkeys(("matmul", "bmm"), _product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolved),
    "einsum": _summed,
    "flatten": flattened,
    "flip": _flipped,
    "getattr": attribute,
    "getitem": item,
    "glu": _halved,
    "linear": _linear,
    "norm": _norm,
    "normalize": _normalized,
    "pad": _padded,
    "permute": permuted,
    "roll": _shifted,
    "scaled_dot_product_attention": _attended,
    "size": size,
    "stack": stacked,
    "unbind": unbound,
    "unflatten": unflattened,
    "unsqueeze": unsqueezed,
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
