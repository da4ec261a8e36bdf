"""`Flow`: the field as the integrator calls it, with flat states and one time per sample."""

from math import prod

import torch
from torch import Tensor

from resolvent.equation.function import VectorField
from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.problem import NonlinearProblem

# Up to this many unknowns per sample the Jacobian is formed. Solving with products is slower for stiff fields.
_MOST_FOR_MATRIX = 256


class Flow:
    """F(t, y) for t (batch,) and y (batch, n); counts its calls.

    Arguments:
        field: F, wrapped.
        shape: of a sample.
        matrix: whether Jacobians are formed; None forms them for few unknowns.

    Attributes:
        evaluations: the number of calls of F; a call with a whole batch counts once.
    """

    def __init__(self, field: VectorField, shape: tuple[int, ...], matrix: bool | None = None) -> None:
        self.field = field
        self.shape = shape
        self.size = prod(shape)
        self.matrix = self.size <= _MOST_FOR_MATRIX if matrix is None else matrix
        self.evaluations = 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        """F, (batch, n)."""
        self.evaluations += 1
        state = y.reshape(-1, *self.shape)
        image = self.field(t.to(y.dtype), state)
        if not isinstance(image, Tensor) or image.shape != state.shape:
            got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(
                f"field must map states (batch, *shape) to the same shape: it took {tuple(state.shape)} and gave "
                f"{got}. The time is a tensor (batch,): shape it like t[:, None] to multiply states."
            )
        if image.dtype != y.dtype:
            raise ValueError(
                f"field must keep the dtype of the state: it took {y.dtype} and gave {image.dtype}. Convert its "
                "parameters, or y0, so that they agree."
            )
        return image.reshape(y.shape)

    def problem(self, t: Tensor, y: Tensor, tau: Tensor) -> NonlinearProblem:
        """The equation w = y + tau F(t, w), for tau (batch,), to be linearized."""
        state = y.reshape(-1, *self.shape)
        factor = tau.to(y.dtype).reshape(-1, *(1,) * len(self.shape))
        return NonlinearProblem(self.field.at(t.to(y.dtype)), state, factor, y.dtype, y.dtype)

    def step_matrix(self, t: Tensor, y: Tensor, tau: Tensor) -> Tensor:
        """tau F'(t, y), (batch, n, n), for tau (batch,)."""
        self.evaluations += 1
        problem = self.problem(t, y, tau)
        _, matrix = evaluate_with_matrix(problem, problem.b)
        return torch.eye(self.size, dtype=y.dtype, device=y.device) - matrix.dense()
