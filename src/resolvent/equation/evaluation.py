"""One evaluation of F with its graph, of which nothing is kept but what a derivative needs."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


class Evaluation:
    """F(w) and the graph that leads to it from w.

    The graph is known by its ends, so that neither w nor F(w) need outlive their use: what is kept for the backward
    pass is what the derivative of F needs, as for an explicit layer.

    Arguments:
        w: (batch, *shape), the point.
        start: the point where the graph begins, made by `graph_start`.
        image: F there, with its graph.
    """

    def __init__(self, w: Tensor, start: Tensor, image: Tensor) -> None:
        # A stand-in for the point, of its shape and with no memory of its own.
        self.like = w.new_empty(()).expand(w.shape)
        self.image: Tensor | None = image
        self._point: Tensor | None = w.detach()
        self._start = get_gradient_edge(start)
        self._end: GradientEdge | None = get_gradient_edge(image) if image.requires_grad else None

    def is_at(self, w: Tensor, compare: bool) -> bool:
        """Whether this is F at w. Compares addresses, and values where they differ if `compare`. To be asked before
        `release`."""
        assert self._point is not None
        if self._point.shape != w.shape:
            return False
        return self._point.data_ptr() == w.data_ptr() or (compare and torch.equal(self._point, w))

    def release(self) -> Tensor:
        """F(w), attached to all that F closes over; neither it nor the point is kept here any longer."""
        assert self.image is not None
        image, self.image, self._point = self.image, None, None
        return image

    def pull_back(self, cotangent: Tensor, create_graph: bool = False) -> Tensor:
        """The transposed Jacobian of F times a cotangent; zero where F does not depend on w."""
        product = None
        if self._end is not None:
            (product,) = torch.autograd.grad(
                self._end, self._start, cotangent, retain_graph=True, create_graph=create_graph, allow_unused=True
            )
        return torch.zeros_like(self.like) if product is None else product

    def depends_on_more(self) -> bool:
        """Whether F depends on anything besides w that requires a gradient: its graph is searched for another leaf."""
        stack: list[Node | None] = [] if self._end is None else [self._end.node]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node is None or node in seen or node is self._start.node:
                continue
            seen.add(node)
            if not node.next_functions:
                return True
            stack += [parent for parent, _ in node.next_functions]
        return False


class LastEvaluation:
    """Keeps the last evaluation of F with its graph, and no other.

    The last evaluation of a solve is as a rule the one at its solution, whose graph the backward pass needs: it is not
    made a second time.
    """

    def __init__(self) -> None:
        self._last: Evaluation | None = None

    def forget(self) -> None:
        """Frees the graph before the next one is made."""
        self._last = None

    def keep(self, evaluation: Evaluation) -> Tensor:
        """F(w), detached."""
        self._last = evaluation
        assert evaluation.image is not None
        return evaluation.image.detach()

    def take(self, w: Tensor, compare: bool) -> Evaluation | None:
        """The last evaluation if it was made at w, else None. Without `compare` addresses are compared, not values."""
        last, self._last = self._last, None
        return last if last is not None and last.is_at(w, compare) else None


def graph_start(w: Tensor) -> Tensor:
    """w as the start of a graph that does not keep it. To be called where autograd records."""
    start: Tensor = _Start.apply(w.new_empty(0, requires_grad=True), w.detach())
    return start


class _Start(torch.autograd.Function):
    """Where a graph begins: a point that it does not hold on to, as it would to a leaf.

    The graph is walked for what F closes over, too, and nobody wants the gradient by the point then.
    """

    @staticmethod
    def forward(ctx: Any, seed: Tensor, point: Tensor) -> Tensor:
        return point.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, None
