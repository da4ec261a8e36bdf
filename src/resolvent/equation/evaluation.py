"""`Evaluation`: F(w) with its graph, keeping only what a derivative needs."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge


class Evaluation:
    """F(w) and the graph that leads to it from w.

    The graph is stored by the gradient edges at its two ends, so w and F(w) themselves can be freed. The backward pass
    keeps only what the derivative of F needs, as for an explicit layer.

    Arguments:
        w: (batch, *shape), the point.
        start: the point where the graph begins, made by `graph_start`.
        image: F there, with its graph.

    Attributes:
        start, end: the edges where the graph begins and ends; None if F(w) has no graph.
    """

    def __init__(self, w: Tensor, start: Tensor, image: Tensor) -> None:
        self._shape = w.shape, w.dtype, w.device
        self.image: Tensor | None = image
        self._point: Tensor | None = w.detach()
        self.start = get_gradient_edge(start)
        self.end: GradientEdge | None = get_gradient_edge(image) if image.requires_grad else None

    @property
    def like(self) -> Tensor:
        """A tensor with the shape of the point that takes no memory."""
        shape, dtype, device = self._shape
        return torch.empty((), dtype=dtype, device=device).expand(shape)

    def is_at(self, w: Tensor, compare: bool) -> bool:
        """Whether this is F at w. Compares addresses; if they differ and `compare` is true, values. Call it before
        `release`."""
        assert self._point is not None
        if self._point.shape != w.shape:
            return False
        return self._point.data_ptr() == w.data_ptr() or (compare and torch.equal(self._point, w))

    def release(self) -> Tensor:
        """Returns F(w), attached to everything F closes over, and drops it and the point from this object."""
        assert self.image is not None
        image, self.image, self._point = self.image, None, None
        return image

    def pull_back(self, cotangent: Tensor, create_graph: bool = False) -> Tensor:
        """The transposed Jacobian of F times a cotangent; zero where F does not depend on w."""
        product = None
        if self.end is not None:
            (product,) = torch.autograd.grad(
                self.end, self.start, cotangent, retain_graph=True, create_graph=create_graph, allow_unused=True
            )
        return torch.zeros_like(self.like) if product is None else product


class LastEvaluation:
    """Keeps only the last evaluation of F, with its graph.

    The last evaluation of a solve is usually at its solution. The backward pass reuses its graph instead of evaluating
    F again.
    """

    def __init__(self) -> None:
        self._last: Evaluation | None = None

    def forget(self) -> None:
        """Frees the graph before the next one is built."""
        self._last = None

    def keep(self, evaluation: Evaluation) -> Tensor:
        """Stores the evaluation and returns F(w), detached."""
        self._last = evaluation
        assert evaluation.image is not None
        return evaluation.image.detach()

    def take(self, w: Tensor, compare: bool) -> Evaluation | None:
        """The last evaluation if it was made at w, else None. Without `compare`, compares addresses, not values."""
        last, self._last = self._last, None
        return last if last is not None and last.is_at(w, compare) else None


def graph_start(w: Tensor) -> Tensor:
    """w as the start of a graph that does not keep it. Call it where autograd records."""
    start: Tensor = _Start.apply(w.new_empty(0, requires_grad=True), w.detach())
    return start


class _Start(torch.autograd.Function):
    """The start of a graph. Unlike a leaf, the point is not kept by the graph.

    The backward pass returns None: when the gradients of what F closes over are computed, that of the point is not
    needed.
    """

    @staticmethod
    def forward(ctx: Any, seed: Tensor, point: Tensor) -> Tensor:
        return point.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, None
