"""One evaluation of F with its graph, of which nothing is kept but what a derivative needs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


class Evaluation:
    """F(w) and the graph that leads to it from w.

    The graph is known by its ends, so that F(w) need not outlive its use: what is kept for the backward pass is w, and
    what the derivative of F needs, as for an explicit layer.

    Arguments:
        call: F.
        w: (batch, *shape), the point.
    """

    def __init__(self, call: Callable[[Tensor], Tensor], w: Tensor) -> None:
        self.point = w.detach().requires_grad_()
        # The graph is walked for what F closes over, too, and nobody wants the gradient by the point then.
        self.point.register_post_accumulate_grad_hook(_discard)
        with torch.enable_grad():
            image = call(self.point)
        self.image: Tensor | None = image
        self._end: GradientEdge | None = get_gradient_edge(image) if image.requires_grad else None

    def is_at(self, w: Tensor) -> bool:
        """Whether this is F at w."""
        if self.point.shape != w.shape:
            return False
        return self.point.data_ptr() == w.data_ptr() or torch.equal(self.point, w)

    def release(self) -> Tensor:
        """F(w), attached to all that F closes over; it is not kept here any longer."""
        assert self.image is not None
        image, self.image = self.image, None
        return image

    def pull_back(self, cotangent: Tensor, create_graph: bool = False) -> Tensor:
        """The transposed Jacobian of F times a cotangent; zero where F does not depend on w."""
        product = None
        if self._end is not None:
            (product,) = torch.autograd.grad(
                self._end, self.point, cotangent, retain_graph=True, create_graph=create_graph, allow_unused=True
            )
        return torch.zeros_like(self.point, requires_grad=False) if product is None else product

    def depends_on_more(self) -> bool:
        """Whether F depends on anything besides w that requires a gradient: its graph is searched for another leaf."""
        stack: list[Node | None] = [] if self._end is None else [self._end.node]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if not node.next_functions and getattr(node, "variable", None) is not self.point:
                return True
            stack += [parent for parent, _ in node.next_functions]
        return False


def _discard(point: Tensor) -> None:
    point.grad = None
