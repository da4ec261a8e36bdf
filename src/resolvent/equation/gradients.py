"""The gradients of what F closes over, computed along with a product F'(w)^T u of the backward solve."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from resolvent.equation.closed import Edge, has_hooks

_SMALL = 1 << 14
"""Up to so many numbers, an operation takes the same time."""


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
        cotangent, factor = self._weigh(u)
        return _times(factor, self._pull_back(cotangent, self._edges, create_graph))

    def with_product(self, u: Tensor, unit: Tensor | None) -> tuple[Tensor, float, tuple[Tensor | None, ...]]:
        """y and a factor with tau F'(w)^T u = factor * y, and the gradients at u times its unit, in one walk through
        the graph."""
        cotangent, factor = self._weigh(u if unit is None else unit * u)
        product, *found = self._pull_back(cotangent, (self._start, *self._edges))
        if product is None:
            product = torch.zeros_like(u)
        elif unit is not None:
            product = product / unit
        return product, factor, _times(factor, tuple(found))

    def _weigh(self, u: Tensor) -> tuple[Tensor, float]:
        """The cotangent of the end, and a factor for the results: tau multiplies what takes less memory. What is small
        takes one operation, where the weights take one each."""
        tau = self._tau
        if tau is None:
            return u, 1.0
        if isinstance(tau, Tensor) or u.numel() < max(self._size, _SMALL):
            return tau * u, 1.0
        return u, tau

    def _pull_back(
        self, cotangent: Tensor, edges: tuple[GradientEdge, ...], create_graph: bool = False
    ) -> tuple[Tensor | None, ...]:
        # Nodes may be shared with other evaluations. The graph is freed with the last reference to it.
        with _without_hooks(self._tensors):
            return torch.autograd.grad(
                self._end, edges, cotangent, retain_graph=True, create_graph=create_graph, allow_unused=True
            )


def _times(factor: float, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tensors if factor == 1 else tuple(None if x is None else factor * x for x in tensors)


@contextmanager
def _without_hooks(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Keeps hooks of tensors from running: the autograd engine runs them later, on the whole gradient.

    Only hooks that were registered after the solve are met here, see `closed_tensors`. For the moment they are missing
    in all threads.
    """
    late = [tensor for tensor in tensors if has_hooks(tensor)]
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

    def product(self, u: Tensor) -> tuple[Tensor, float]:
        """y and a factor with tau F'(w)^T u = factor * y. Keeps the gradients at u."""
        self._last = None
        product, factor, gradients = self.closed.with_product(u, self.unit)
        self._last = u, gradients
        return product, factor

    def take(self, u: Tensor, compare: bool) -> tuple[Tensor | None, ...] | None:
        """The gradients if the last product was at u, else None. Without `compare`, compares addresses, not values."""
        last, self._last = self._last, None
        if last is None or not (last[0].data_ptr() == u.data_ptr() or (compare and torch.equal(last[0], u))):
            return None
        return last[1]
