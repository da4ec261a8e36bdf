"""Rules for the functions in the graph of a module: what they make of values with one row per sample.

A rule takes the arguments of its function. It returns the value of the result, or refuses: a sum over the features of a
sample is fine, one over the batch is not. An argument that a rule does not know is refused, too.
"""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from resolvent.fields.row_shapes import (
    along,
    attribute,
    extreme,
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
from resolvent.fields.rows import Length, Rows, expect, is_constant, is_fixed, numbers, rows_of


def _entrywise(*arguments: Any, **named: Any) -> Any:
    """Functions of each entry, which broadcast."""
    everything = [*arguments, *named.values()]
    rows = [a for a in everything if isinstance(a, Rows)]
    others = [a for a in everything if not isinstance(a, Rows | Length)]
    expect(is_constant(others))
    if not rows:
        expect(not any(isinstance(a, Tensor) for a in others))
        return Length()
    # Of tensors with different ranks, the batch of one could meet the features of another.
    expect(all(a == rows[0] for a in rows) and all(map(rows[0].takes, others)))
    return rows[0]


def _cast(x: Any, *others: Any, **named: Any) -> Any:
    """Of another tensor, only the type counts."""
    expect(all(isinstance(a, Rows) or is_constant(a) for a in (*others, *named.values())))
    return x if isinstance(x, Tensor) else rows_of(x)


def _number(x: Any) -> Length:
    """Functions of a number, such as `math.sqrt`."""
    expect(isinstance(x, Length))
    return Length()


def _chosen(condition: Any, x: Any, other: Any) -> Any:
    return _entrywise(condition, x, other)


def _normalized(x: Any, p: Any = 2.0, dim: Any = 1, **named: Any) -> Rows:
    return along(x, dim, p, **named)


def _halved(x: Any, dim: Any = -1) -> Rows:
    return along(x, dim)


def _flipped(x: Any, *positions: Any, dims: Any = ()) -> Rows:
    return along(x, positions if len(positions) > 1 else (*positions, dims)[0])


def _shifted(x: Any, shifts: Any, dims: Any) -> Rows:
    return along(x, dims, shifts)


def _spread(x: Any, dim: Any, *, keepdim: Any = False, **named: Any) -> Rows:
    """Variances, whose further arguments may be flags of other meanings."""
    return reduced(x, dim, keepdim, **named)


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: Any = False) -> Rows:
    return reduced(x, dim, keepdim, p=p)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False) -> Rows:
    return reduced(x, dim, keepdim, p=ord)


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


def _linear(x: Any, weight: Any, bias: Any = None) -> Rows:
    rows = rows_of(x)
    expect(rows.least >= 2 and isinstance(weight, Tensor) and weight.dim() == 2)
    # A bias with more dimensions could have one row per sample.
    expect(bias is None or (isinstance(bias, Tensor) and bias.dim() <= 1))
    return rows


def _convolved(x: Any, kernel: Any, *others: Any, **named: Any) -> Rows:
    rows = rows_of(x)
    # With one dimension less, the first would be that of the channels.
    expect(isinstance(kernel, Tensor) and rows.ends_inside(kernel.dim() - 1))
    expect(is_constant([*others, *named.values()]))
    return rows


def _pooled(dimensions: int, x: Any, *settings: Any, **named: Any) -> Rows:
    rows = rows_of(x)
    expect(rows.ends_inside(dimensions) and is_fixed([*settings, *named.values()]))
    return rows


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
    abs add addcdiv addcmul arctan asinh atan atan2 ceil celu clamp clamp_max clamp_min clip clone contiguous cos cosh
    detach div double elu eq erf erfc exp exp2 expm1 float floor floordiv ge gelu gt half hardshrink hardsigmoid
    hardswish hardtanh hypot iadd imul isfinite isub itruediv le leaky_relu lerp log log10 log1p log2 logical_and
    logical_not logical_or logit logsigmoid lt masked_fill maximum minimum mish mod mul multiply ne neg ones_like pow
    reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinc sinh softplus softshrink
    softsign sqrt square sub subtract tan tanh tanhshrink truediv zeros_like
"""
ENTRYWISE = frozenset(_ENTRYWISE.split())
"""The names of functions of each entry."""

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
    **dict.fromkeys(("matmul", "mm", "bmm"), _product),
    **dict.fromkeys(("to", "type_as"), _cast),
    **dict.fromkeys(("max", "min"), extreme),
    **{f"{kind}avg_pool{n}d": partial(_pooled, n) for n in (1, 2, 3) for kind in ("", "adaptive_")},
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolved),
    "einsum": _summed,
    "flatten": flattened,
    "flip": _flipped,
    "getattr": attribute,
    "getitem": item,
    "glu": _halved,
    "linear": _linear,
    "math.sqrt": _number,
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

RULES: dict[str, Callable[..., Any]] = {**dict.fromkeys(ENTRYWISE, _entrywise), **_OTHERS}
"""By the name of a function, or of a method, which has its tensor as the first argument."""

NAMES: dict[Any, str] = {getattr: "getattr", math.sqrt: "math.sqrt"} | {
    function: name
    for place in (torch, functional, torch.linalg, operator)
    for name in RULES
    if callable(function := getattr(place, name, None))
}
"""The names of functions."""
