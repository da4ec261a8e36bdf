"""The derivative of a field or of a network at given states, sample by sample, as a linear map."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from resolvent.equation.linearization import from_rows, gradient
from resolvent.fields import Time


class Jacobian:
    """The Jacobian of a function at the samples of a batch, applied without being formed.

    The function is evaluated once. Its graph is walked backwards for J^T u, and the graph of that, which is linear in
    u, for J v: a product costs about as much as one or two gradients. The function has to treat each sample alone.

    Arguments:
        function: maps (batch, *shape) to (batch, *image), differentiable.
        x: (batch, *shape).
    """

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self._x = x.detach().requires_grad_()
        with torch.enable_grad():
            self._y = function(self._x)
            self._u = torch.zeros_like(self._y, requires_grad=True)
            self._pulled = gradient(self._y, self._x, self._u, create_graph=True)

    @property
    def point(self) -> Tensor:
        """Where it is taken, (batch, *shape)."""
        return self._x.detach()

    @property
    def value(self) -> Tensor:
        """The value of the function, (batch, *image)."""
        return self._y.detach()

    def product(self, v: Tensor) -> Tensor:
        """J v: (batch, *shape) to (batch, *image)."""
        return gradient(self._pulled, self._u, v)

    def transposed_product(self, u: Tensor) -> Tensor:
        """J^T u: (batch, *image) to (batch, *shape)."""
        return gradient(self._y, self._x, u)

    @cached_property
    def matrix(self) -> Tensor:
        """J as (batch, image entries, entries), a row by a product with J^T."""
        return from_rows(self.transposed_product, self._y)


def field_jacobian(field: Callable[[Time, Tensor], Tensor], t: Time, y: Tensor) -> Jacobian:
    """The Jacobian of F(t, .) at the states y, (batch, *shape)."""
    jacobian = Jacobian(lambda state: field(t, state), y)
    if jacobian.value.shape != y.shape:
        shapes = f"it took {tuple(y.shape)} and gave {tuple(jacobian.value.shape)}"
        raise ValueError(f"a field must map states to the same shape: {shapes}.")
    return jacobian
