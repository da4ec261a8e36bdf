"""The tensors that F closes over, found at the ends of the graph of one evaluation.

The autograd engine needs no such list: it walks the graph of F by itself. A backward pass that knows these tensors can
ask for their gradients along with its last product F'(w)^T u, and the engine need not walk that graph once more.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from resolvent.equation.function import Function
from resolvent.equation.torch_func import tensors_within

Edge = tuple[Node, int]

# How many nodes are searched to make sure that one tensor is not computed from another.
_MOST_NODES = 200


def outer_edges(start: GradientEdge, end: GradientEdge | None) -> Iterator[Edge]:
    """The edges by which the graph of an evaluation, between `start` and `end`, depends on anything but its start.

    They lead to leaves, or to nodes that are older than the start: a node made later belongs to the evaluation. So do
    casts of leaves, which autocast keeps for several evaluations.
    """
    if end is None:
        return
    found: set[Edge] = set()
    stack: list[Edge] = [(end.node, end.output_nr)]
    seen = {start.node}
    begun = start.node._sequence_nr()
    while stack:
        node, number = stack.pop()
        if node in seen:
            continue
        parents = node.next_functions
        if not parents or (node._sequence_nr() < begun and not _casts_leaf(node)):
            if (node, number) not in found:
                found.add((node, number))
                yield node, number
        else:
            seen.add(node)
            stack += [(parent, n) for parent, n in parents if parent is not None]


def closed_tensors(edges: Iterable[Edge], F: Function, *others: Tensor) -> dict[Edge, Tensor] | None:
    """The tensors at these edges, and the `others` that require a gradient, each once. None if a tensor is not found,
    if one of them is computed from another, or if it has hooks, which would run twice."""
    needed = {_edge(tensor): tensor for tensor in others if tensor.requires_grad}
    leaves: dict[Edge, Tensor] = {edge: edge[0].variable for edge in edges if _is_leaf(edge[0])}  # type: ignore[attr-defined]
    leaves |= {edge: tensor for edge, tensor in needed.items() if tensor.is_leaf}
    inner = {edge: tensor for edge, tensor in needed.items() if not tensor.is_leaf}
    missing = {edge for edge in edges if edge not in leaves and edge not in inner}
    if missing:
        for tensor in _held_by(F):
            if tensor.grad_fn is not None and (edge := _edge(tensor)) in missing:
                inner[edge] = tensor
                missing.discard(edge)
                if not missing:
                    break
        else:
            return None
    tensors = leaves | inner
    if any(has_hooks(tensor) for tensor in tensors.values()):
        return None
    return tensors if not inner or _independent(inner, tensors) else None


def has_hooks(tensor: Tensor) -> bool:
    return bool(tensor._backward_hooks) or (tensor.retains_grad and not tensor.is_leaf)


def _casts_leaf(node: Node) -> bool:
    ((parent, _), *_) = node.next_functions
    return node.name() == "ToCopyBackward0" and parent is not None and not parent.next_functions


def _is_leaf(node: Node) -> bool:
    # The context of a custom function is a node, too, and may have any attribute.
    return not node.next_functions and hasattr(node, "variable")


def _edge(tensor: Tensor) -> Edge:
    node, number = get_gradient_edge(tensor)[:2]
    return node, number


def _held_by(F: Function) -> Iterator[Tensor]:
    """The tensors that F may use. The likely ones come first: the search through all objects it holds takes longer."""
    yield from F.conditions
    call: Any = F.call
    while isinstance(call, partial | MethodType):
        if isinstance(call, MethodType):
            call = call.__self__
            continue
        yield from (argument for argument in call.args if isinstance(argument, Tensor))
        call = call.func
    if isinstance(call, nn.Module):
        for module in call.modules():
            yield from (tensor for tensor in module._parameters.values() if tensor is not None)
    yield from tensors_within(F)


def _independent(inner: Iterable[Edge], all_of_them: Iterable[Edge]) -> bool:
    """Whether no tensor is computed from another. Its gradient would contain that of the other, counted twice."""
    ends = {node for node, _ in all_of_them}
    stack = [node for node, _ in inner]
    seen = set(stack)
    while stack:
        for parent, _ in stack.pop().next_functions:
            if parent is None or parent in seen:
                if parent in ends:
                    return False
                continue
            if parent in ends or len(seen) > _MOST_NODES:
                return False
            seen.add(parent)
            stack.append(parent)
    return True
