"""The Jacobian of a field at given states, by its products with vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.equation.norms import flat
from resolvent.equation.torch_func import outside_inference

Field = Callable[..., Tensor]
Time = float | Tensor | None


class Jacobian:
    """J = dF/dy at (t, y), for each sample; F is evaluated once, on construction, whatever is asked for after.

    F has to treat each sample alone. Then the Jacobian of the batch consists of those of the samples, and one backward
    pass multiplies them all. Products are differentiable wherever autograd is recording.

    Arguments:
        field: F(t, y), or F(y) if t is None.
        t: time, a number, a tensor of no dimension or (batch,); None if F is a function of the state alone.
        y: (batch, *shape).
        detach: whether y counts as a constant. Otherwise gradients flow into it.
    """

    def __init__(self, field: Field, t: Time, y: Tensor, detach: bool) -> None:
        if not isinstance(y, Tensor) or not y.is_floating_point() or y.dim() == 0:
            got = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else repr(y)
            raise ValueError(f"y must be a tensor (batch, *shape) of a floating-point type, got {got}.")
        # Inference mode, as in many validation loops, forbids even the graph of one evaluation: step out of it.
        with torch.inference_mode(False), torch.enable_grad():
            y, t = outside_inference(y), outside_inference(t)
            self.point = y.detach().requires_grad_() if detach or not y.requires_grad else y
            self.image = field(self.point) if t is None else field(t, self.point)
        if not isinstance(self.image, Tensor) or self.image.shape != y.shape:
            got = f"{tuple(self.image.shape)}" if isinstance(self.image, Tensor) else type(self.image).__name__
            raise ValueError(f"F must map (batch, *shape) to the same shape: it took {tuple(y.shape)} and gave {got}.")

    @property
    def size(self) -> int:
        """The dimension d of one sample."""
        return self.point.shape[1:].numel()

    def transposed_product(self, u: Tensor) -> Tensor:
        """J^T u: (batch, *shape) to the same."""
        if not self.image.requires_grad:
            return torch.zeros_like(self.point)
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False):
            (product,) = torch.autograd.grad(
                self.image, self.point, u, retain_graph=True, create_graph=recording, materialize_grads=True
            )
        return product

    def matrix(self) -> Tensor:
        """J, (batch, d, d), by d products."""
        unit = torch.eye(self.size, dtype=self.point.dtype, device=self.point.device)
        rows = [flat(self.transposed_product(e.reshape(self.point.shape[1:]).expand_as(self.point))) for e in unit]
        return torch.stack(rows, dim=1)
