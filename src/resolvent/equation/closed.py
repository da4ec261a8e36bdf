"""What F closes over, as tensors: found at the ends of the graph of one evaluation.

The autograd engine needs no such list: it walks the graph of F by itself. A backward pass that knows these tensors can
ask for their gradients along with its last product F'(w)^T u, and the engine need not walk that graph once more.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from resolvent.equation.function import Function
from resolvent.equation.torch_func import tensors_within

Edge = tuple[Node, int]

# How many nodes are searched to make sure that one tensor is not computed from another.
_MOST_NODES = 200


def outer_edges(start: GradientEdge, end: GradientEdge | None) -> list[Edge]:
    """The edges by which the graph of an evaluation, between `start` and `end`, depends on anything but its start.

    They lead to leaves, or to nodes that are older than the start: a node made later belongs to the evaluation. So do
    casts of leaves, which autocast keeps for several evaluations.
    """
    if end is None:
        return []
    found: dict[Edge, None] = {}
    stack: list[Edge] = [(end.node, end.output_nr)]
    seen = {start.node}
    begun = start.node._sequence_nr()
    while stack:
        node, number = stack.pop()
        if node in seen:
            continue
        parents = node.next_functions
        if not parents or (node._sequence_nr() < begun and not _casts_leaf(node)):
            found[node, number] = None
        else:
            seen.add(node)
            stack += [(parent, n) for parent, n in parents if parent is not None]
    return list(found)


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
    if any(_has_hooks(tensor) for tensor in tensors.values()):
        return None
    return tensors if not inner or _independent(inner, tensors) else None


def _has_hooks(tensor: Tensor) -> bool:
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


class Closed:
    """The tensors that F closes over, with the graph that leads from them to F(w).

    Arguments:
        tensors: those that require a gradient, by their edges; tau is one of them if it does.
        start: where the graph begins besides, the point w.
        end: where it ends: at F(w), or at b + tau F(w) if tau requires a gradient.
        tau: the factor of F(w), if the graph ends there.

    Attributes:
        known: the solution of the last backward solve, and the gradients there, if they came with its last product.
    """

    def __init__(
        self, tensors: dict[Edge, Tensor], start: GradientEdge, end: GradientEdge, tau: float | Tensor | None
    ) -> None:
        self.known: tuple[Tensor, tuple[Tensor | None, ...]] | None = None
        self._tensors = tuple(tensors.values())
        self._size = sum(tensor.numel() for tensor in self._tensors)
        self._edges = tuple(GradientEdge(*edge) for edge in tensors)
        self._start, self._end, self._tau = start, end, tau

    def gradients(self, u: Tensor, create_graph: bool) -> tuple[Tensor | None, ...]:
        """tau (dF/dgamma)^T u for each of the tensors gamma."""
        known = self.known
        if known is not None and known[0] is u and not create_graph:
            return known[1]
        factor = self._factor(u)
        return _times(factor, self._pull_back(u, factor, self._edges, create_graph))

    def with_product(self, g: Tensor, u: Tensor, unit: Tensor | None) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """g + tau F'(w)^T u, and the gradients at u times its unit, in one walk through the graph."""
        factor, scaled = self._factor(u), u if unit is None else unit * u
        product, *found = self._pull_back(scaled, factor, (self._start, *self._edges))
        if product is None:
            product = torch.zeros_like(u)
        elif unit is not None:
            product = product / unit
        return torch.add(g, product, alpha=factor), _times(factor, tuple(found))

    def _factor(self, u: Tensor) -> float:
        """What results are multiplied by, tau, instead of u, where that takes less memory; else 1."""
        tau = self._tau
        return 1.0 if tau is None or isinstance(tau, Tensor) or self._size > u.numel() else tau

    def _pull_back(
        self, u: Tensor, factor: float, edges: tuple[GradientEdge, ...], create_graph: bool = False
    ) -> tuple[Tensor | None, ...]:
        weighed = u if self._tau is None or factor == self._tau else self._tau * u
        # Nodes may be shared with other evaluations. The graph is freed with the last reference to it.
        with _without_hooks(self._tensors):
            return torch.autograd.grad(
                self._end, edges, weighed, retain_graph=True, create_graph=create_graph, allow_unused=True
            )


def _times(factor: float, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tensors if factor == 1 else tuple(None if x is None else factor * x for x in tensors)


@contextmanager
def _without_hooks(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Keeps hooks of tensors from running: the autograd engine runs them later, on the whole gradient.

    Only hooks that were registered after the solve are met here, see `closed_tensors`. For the moment they are missing
    in all threads.
    """
    late = [tensor for tensor in tensors if _has_hooks(tensor)]
    retained = [(tensor, tensor.grad) for tensor in late if not tensor.is_leaf and tensor.retains_grad]
    hooks: list[tuple[Any, dict[int, Any]]] = [
        (tensor._backward_hooks, dict(tensor._backward_hooks)) for tensor in late if tensor._backward_hooks
    ]
    try:
        for registered, _ in hooks:
            registered.clear()
        yield
    finally:
        for registered, own in hooks:
            registered.update(own)
        for tensor, gradient in retained:
            tensor.grad = gradient


class LastProduct:
    """Keeps the gradients that were computed with the last product tau F'(w)^T u of a backward solve.

    The last product is at the solution, where it confirms the residual.

    Arguments:
        closed: what F closes over.
        unit: (batch, 1, ...), what u is multiplied by for the gradients, if the system is scaled.
    """

    def __init__(self, closed: Closed, unit: Tensor | None = None) -> None:
        self.closed, self.unit = closed, unit
        self._last: tuple[Tensor, tuple[Tensor | None, ...]] | None = None

    def image(self, g: Tensor, u: Tensor) -> Tensor:
        """g + tau F'(w)^T u. Keeps the gradients at u."""
        self._last = None
        image, gradients = self.closed.with_product(g, u, self.unit)
        self._last = u, gradients
        return image

    def take(self, u: Tensor, compare: bool) -> tuple[Tensor | None, ...] | None:
        """The gradients if the last product was at u, else None. Without `compare`, compares addresses, not values."""
        last, self._last = self._last, None
        if last is None or not (last[0].data_ptr() == u.data_ptr() or (compare and torch.equal(last[0], u))):
            return None
        return last[1]
