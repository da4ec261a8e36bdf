"""The autograd function that applies A^{-1}, A = I - tau F'(w), as a constant linear map.

With it a solution w, found by any means and with no graph, becomes differentiable: add A^{-1} of the defect
b + tau F(w) - w, evaluated with the graph attached. The sum has the value w, and its derivative is that of the
solution by the implicit function theorem. One such step is exact for first derivatives only, since F saw a detached
w. Each further step w + A^{-1}(b + tau F(w) - w) with the same constant A makes one more order exact: it is a chord
Newton iteration in the ring of truncated Taylor series. Differentiating beyond the prepared order raises.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.equation.torch_func import forward_mode, transforming
from resolvent.errors import DerivativeOrderError


@dataclass(frozen=True)
class InverseMap:
    """A^{-1} or A^{-T} as data for `Inverse`.

    Attributes:
        solve: maps (right-hand side, transposed, tensors) to the solution. Inside a `torch.func` transform it must
            depend on `tensors` alone: a Function sees other levels of nesting than its caller.
        order: how many derivatives of the solution are exact, including the one this map gives.
        transposed: whether the map is A^{-T}.
    """

    solve: Callable[..., Tensor]
    order: int
    transposed: bool = False

    def adjoint(self) -> Self:
        return replace(self, transposed=not self.transposed)


class Inverse(torch.autograd.Function):
    """Maps x to A^{-1} x, with A constant. If `value` is given, returns it instead and does not compute A^{-1} x: at a
    solution the defect x is zero to tolerance, and `value` is the solution it is added to. `link` represents the value
    in the graph, to detect derivatives of a higher order than prepared."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inverse: InverseMap, x: Tensor, value: Tensor | None, link: Tensor | None, *tensors: Tensor) -> Tensor:
        if value is None:
            return inverse.solve(x, inverse.transposed, tensors).view_as(x)
        # A view, not a copy, so that autograd detects an in-place change of the result.
        return value.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        inverse, _, _, link, *tensors = inputs
        ctx.inverse = inverse
        link = output if link is None else link
        ctx.save_for_backward(link, *tensors)
        ctx.save_for_forward(link, *tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        inverse, (link, *tensors) = ctx.inverse, ctx.saved_tensors
        if not (torch.is_grad_enabled() or forward_mode() or transforming()):
            u = inverse.solve(cotangents[0], not inverse.transposed, tensors)
            return None, u, None, None, *(None for _ in tensors)
        return None, transposed_solve(inverse, cotangents[0], link, *tensors), None, None, *(None for _ in tensors)

    @staticmethod
    def jvp(ctx: Any, _: Any, x: Tensor, *rest: Any) -> Tensor:
        link, *tensors = ctx.saved_tensors
        v = Inverse.apply(ctx.inverse, x, None, link, *tensors)
        # By a Function: torch turns forward mode off here, and plain operations would lose tangents of outer levels.
        limited: Tensor = _Sum.apply(v, _Limit.apply(link, ctx.inverse.order - 1))
        return limited


def apply_inverse(inverse: InverseMap, x: Tensor, value: Tensor, *tensors: Tensor) -> Tensor:
    """`value`, with the derivative of A^{-1} x."""
    # A scalar with the dependences of x: the graph would keep the value itself in memory. Not in forward mode, where
    # it would have a tangent but must not.
    link = None if transforming() or forward_mode() else x[:0].sum()
    result: Tensor = Inverse.apply(inverse, x, value, link, *tensors)
    return result


def transposed_solve(inverse: InverseMap, g: Tensor, link: Tensor, *tensors: Tensor) -> Tensor:
    """A^{-T} g where the backward pass is itself differentiated or transformed."""
    u: Tensor = Inverse.apply(inverse.adjoint(), g, None, link, *tensors)
    if torch.is_grad_enabled() or forward_mode():
        u = _Sum.apply(u, _Limit.apply(link, inverse.order - 1))
    return u


# torch binds the arguments to the signature at every call, which takes longer than the rest of the call. There are no
# defaults to fill in, so the simplest signature serves.
Inverse.forward.__signature__ = inspect.signature(lambda *arguments: None)  # type: ignore[attr-defined]


class _Sum(torch.autograd.Function):
    """u + zero, where zero may be 0-d."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, zero: Tensor) -> Tensor:
        return u + zero

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.shape = inputs[1].shape

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return cotangents[0], cotangents[0].sum_to_size(ctx.shape)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0]


class _Limit(torch.autograd.Function):
    """Zero; differentiating it more than `remaining` times raises.

    It represents the dependence on the solution, which a first derivative with a constant A has lost. Autograd reaches
    it exactly when that dependence is needed, and not for a derivative with respect to the cotangent.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, remaining: int) -> Tensor:
        return torch.zeros_like(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        value, ctx.remaining = inputs
        ctx.save_for_backward(value)
        ctx.save_for_forward(value)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        if ctx.remaining == 0:
            _refuse()
        if not (torch.is_grad_enabled() or forward_mode()):
            return None, None
        return _Limit.apply(ctx.saved_tensors[0], ctx.remaining - 1), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        if ctx.remaining == 0:
            _refuse()
        limit: Tensor = _Limit.apply(ctx.saved_tensors[0], ctx.remaining - 1)
        return limit


def _refuse() -> None:
    raise DerivativeOrderError(
        "A derivative of higher order than the adjoint prepared was requested; it would be silently wrong. Set the "
        "order in advance: adjoint=rs.ImplicitAdjoint(order=2) makes second derivatives exact, order=k the k-th. "
        "Adjoints that approximate the gradient have no higher derivatives."
    )
