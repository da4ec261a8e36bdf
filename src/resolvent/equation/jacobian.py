"""The Jacobian of a function at a point, as a linear map."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.modes import Call, derivatives_allowed, without_inference_tensors
from resolvent.equation.norms import flat
from resolvent.equation.structure import Structured, flattened, structure_of
from resolvent.equation.torch_func import outside_inference, transforming

Field = Callable[..., Any]
Time = float | Tensor | None


class Jacobian:
    """The Jacobian J of a function at the samples of a batch, as products with vectors.

    The function is evaluated once, on construction. J^T u is a backward pass through its graph. J^T u is linear in u,
    so J v is a backward pass through the graph of J^T u. The function must treat each sample alone: one pass then
    multiplies the Jacobians of all samples.

    It also works in inference mode and under `no_grad`. Autocast applies to the function, but not to the products.
    Products are differentiable where autograd records.

    Arguments:
        function: maps (batch, *shape) to (batch, *image), differentiable.
        point: (batch, *shape), or several such tensors in a structure. The Jacobian is then that of the flat function:
            point, value, products and matrix have vectors (batch, n) for states, see `rs.resolve`.
        detach: whether the point counts as a constant. Otherwise gradients of products flow into it.

    Attributes:
        point: (batch, *shape), the point, without a graph.
        value: (batch, *image), the function there, in the dtype of the point and without a graph.
    """

    def __init__(self, function: Callable[[Any], Any], point: Structured, detach: bool = True) -> None:
        if not isinstance(point, Tensor):
            function, point = flattened(function, point)
        self._pullback: Callable[[Tensor], tuple[Tensor, ...]] | None = None
        self._vjp: tuple[Tensor, Tensor] | None = None
        if transforming():
            self._function = lambda x: function(x).to(x.dtype)
            self._at = point.detach() if detach else point
            self._value, self._pullback = torch.func.vjp(self._function, self._at)  # type: ignore[misc]
        else:
            # Not `derivatives_allowed`, which turns autocast off: autocast is part of the function.
            with torch.inference_mode(False), torch.enable_grad():
                point = outside_inference(point)
                self._at = point.detach().requires_grad_() if detach or not point.requires_grad else point
                self._value = without_inference_tensors(function)(self._at).to(point.dtype)
        self.point, self.value = self._at.detach(), self._value.detach()

    def transposed_product(self, u: Tensor) -> Tensor:
        """J^T u: (batch, *image) to (batch, *shape)."""
        if self._pullback is not None:
            return self._pullback(u)[0]
        with derivatives_allowed(u.device):
            return gradient(self._value, self._at, outside_inference(u), create_graph=torch.is_grad_enabled())

    def product(self, v: Tensor) -> Tensor:
        """J v: (batch, *shape) to (batch, *image)."""
        if self._pullback is not None:
            tangent: Tensor = torch.func.jvp(self._function, (self._at,), (v,))[1]
            return tangent
        with derivatives_allowed(v.device):
            if self._vjp is None:
                with torch.enable_grad():
                    u = torch.zeros_like(self._value, requires_grad=True)
                    self._vjp = u, gradient(self._value, self._at, u, create_graph=True)
            u, pulled = self._vjp
            return gradient(pulled, u, outside_inference(v), create_graph=torch.is_grad_enabled())

    def matrix(self) -> Tensor:
        """J as (batch, entries of an image, entries of a sample), by a product with J^T for each row."""
        return from_rows(self.transposed_product, self.value)


def field_jacobian(field: Field, t: Time, y: Structured, detach: bool = True) -> Jacobian:
    """The Jacobian of a field F(t, .) at states y.

    Arguments:
        field: F(t, y), or F(y) if t is None. It must treat each sample alone.
        t: time, a number, a 0-d tensor or (batch,); None if F is a function of the state alone.
        y: (batch, *shape), or several such tensors in a structure. The Jacobian is then that of the flat states.
        detach: as for `Jacobian`.
    """
    if not isinstance(y, Tensor):
        structure = structure_of(y, "y")
        field, y = structure.field(field), structure.flatten(y, "y")
    if not y.is_floating_point() or y.dim() == 0:
        got = f"{y.dtype} of shape {tuple(y.shape)}"
        raise ValueError(f"y must be a tensor (batch, *shape) of a floating-point type, got {got}.")

    def function(state: Tensor) -> Tensor:
        image = field(state) if t is None else field(t, state)
        if not isinstance(image, Tensor) or image.shape != y.shape:
            got = f"{tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(
                f"a field must map states (batch, *shape) to the same shape: it took {tuple(y.shape)} and gave {got}."
            )
        return image

    return Jacobian(function, y, detach)


def from_rows(transposed_product: Call, like: Tensor) -> Tensor:
    """The matrix of a linear map from its transpose: row i is A^T e_i, with e_i shaped like a sample of `like`."""
    batch, shape = like.shape[0], like.shape[1:]
    unit = torch.eye(shape.numel(), dtype=like.dtype, device=like.device)
    rows = [flat(transposed_product(e.reshape(shape).expand(batch, *shape))) for e in unit]
    return torch.stack(rows, dim=1)


def gradient(
    output: Tensor, at: Tensor, cotangent: Tensor, create_graph: bool = False, retain_graph: bool = True
) -> Tensor:
    """The transposed Jacobian of `output` with respect to `at`, times `cotangent`; zero where they are unrelated."""
    if not output.requires_grad:
        return torch.zeros_like(at)
    (product,) = torch.autograd.grad(
        output, at, cotangent, retain_graph=retain_graph, create_graph=create_graph, materialize_grads=True
    )
    return product
