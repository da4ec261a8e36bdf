"""The solution as an autograd function of b and of what F closes over, for first derivatives.

`Inverse` alone hands u = A^{-T} g to the autograd engine, which then walks the graph of F for the gradients of the
weights. But the solve for u has just walked it, with its last product F'(w)^T u. Here the tensors that F closes over
are arguments, and the backward pass returns their gradients itself: as a rule they come with that last product.

There are two functions, because an autograd function is not told which of its gradients are needed, but whether the
node of another one will run. So a gradient of the input alone does not pay for those of the weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.gradients import Closed
from resolvent.equation.implicit_function import InverseMap, transposed_solve
from resolvent.equation.torch_func import forward_mode, transforming

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_will_run = torch._C._will_engine_execute_node


def attach_solution(
    inverse: InverseMap, value: Tensor, b: Tensor, closed: Closed | None, tensors: Sequence[Tensor], like: Tensor
) -> Tensor:
    """`value`, with the derivatives of the solution of w = b + tau F(w).

    Arguments:
        inverse: of order 1.
        value: the solution.
        b: the right-hand side.
        closed: what F closes over; None if nothing of it requires a gradient.
        tensors: those of `closed`.
        like: has the shape of the value, but takes no memory.
    """
    gate = None if closed is None else _Closed.apply(closed, like, *tensors)
    # A scalar with the dependences of b: the graph would keep b itself in memory.
    links = [link for link in (b[:0].sum() if b.requires_grad else None, gate) if link is not None]
    solution: Tensor = _Solution.apply(inverse, closed, links, value, b, gate)
    return solution


class _Solution(torch.autograd.Function):
    """The solution. Its gradient with respect to b and to `gate`, which stands for what F closes over, is
    u = A^{-T} g. `links` represent the two in the graph, to detect second derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        inverse: InverseMap,
        closed: Closed | None,
        links: list[Tensor],
        value: Tensor,
        b: Tensor,
        gate: Tensor | None,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        # Not saved as tensors, because hooks for these may copy them.
        ctx.inverse, ctx.closed, ctx.links = inverse, closed, links
        ctx.save_for_backward(value.new_empty(0))
        # A view, not a copy, so that autograd detects an in-place change of the result.
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        _ = ctx.saved_tensors  # Raises if the graph was freed.
        inverse, closed, g = ctx.inverse, ctx.closed, cotangents[0]
        if g is None:
            return (None,) * 6
        if torch.is_grad_enabled() or forward_mode() or transforming():
            u = transposed_solve(inverse, g, torch.stack([link.reshape(-1)[:0].sum() for link in ctx.links]).sum())
        else:
            needed = closed is not None and _will_run(ctx.links[-1].grad_fn)
            u = inverse.solve(g, True, (), closed if needed else None)
        if not _keeps_graph():
            ctx.inverse = ctx.closed = ctx.links = None
        return None, None, None, None, u, None if closed is None else u


class _Closed(torch.autograd.Function):
    """Stands for what F closes over. The gradient of its value is u; it returns that of each tensor."""

    @staticmethod
    def forward(ctx: Any, closed: Closed, like: Tensor, *tensors: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.closed, ctx.count = closed, len(tensors)
        ctx.save_for_backward(like.new_empty(0))
        return like.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        _ = ctx.saved_tensors
        u, closed = cotangents[0], ctx.closed
        if u is None:
            return (None,) * (2 + ctx.count)
        gradients = closed.gradients(u, torch.is_grad_enabled())
        closed.known = None
        if not _keeps_graph():
            ctx.closed = None
        return None, None, *gradients
