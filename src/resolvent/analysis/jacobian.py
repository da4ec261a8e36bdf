"""The derivative of a field or of a network at given states, sample by sample, as a linear map."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from resolvent.core.problem import flat
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
            self._pulled = _gradient(self._y, self._x, self._u, create_graph=True)

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
        return _gradient(self._pulled, self._u, v)

    def transposed_product(self, u: Tensor) -> Tensor:
        """J^T u: (batch, *image) to (batch, *shape)."""
        return _gradient(self._y, self._x, u)

    @cached_property
    def matrix(self) -> Tensor:
        """J as (batch, image entries, entries), a row by a product with J^T."""
        batch, image = self._y.shape[0], self._y.shape[1:]
        unit = torch.eye(image.numel(), dtype=self._y.dtype, device=self._y.device)
        rows = [flat(self.transposed_product(e.reshape(image).expand(batch, *image))) for e in unit]
        return torch.stack(rows, dim=1)


def field_jacobian(field: Callable[[Time, Tensor], Tensor], t: Time, y: Tensor) -> Jacobian:
    """The Jacobian of F(t, .) at the states y, (batch, *shape)."""
    jacobian = Jacobian(lambda state: field(t, state), y)
    if jacobian.value.shape != y.shape:
        shapes = f"it took {tuple(y.shape)} and gave {tuple(jacobian.value.shape)}"
        raise ValueError(f"a field must map states to the same shape: {shapes}.")
    return jacobian


def _gradient(output: Tensor, at: Tensor, cotangent: Tensor, create_graph: bool = False) -> Tensor:
    """The transposed derivative of `output` by `at`, times `cotangent`; zero where they are unrelated."""
    if not output.requires_grad:
        return torch.zeros_like(at)
    (gradient,) = torch.autograd.grad(
        output, at, cotangent, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )
    return gradient
