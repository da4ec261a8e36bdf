"""`Flow`: the field as the integrator calls it, with flat states and one time per sample; checks of the field."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.function import Function, VectorField, as_vector_field
from resolvent.equation.in_place import unchanged
from resolvent.equation.linear_part import LinearPart, as_linear_part
from resolvent.equation.linearization import evaluate_with_matrix
from resolvent.equation.modes import without_inference_tensors
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
        flat = len(self.shape) == 1
        state = y if flat else y.reshape(-1, *self.shape)
        time = t if t.dtype == y.dtype else t.to(y.dtype)
        image = unchanged(partial(self.field.call, time), state, name="field")
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
        return image if flat else image.reshape(y.shape)

    def at_stages(self, times: list[Tensor], states: Tensor) -> Tensor:
        """F at all stages, (batch, stages, n), for times (batch,) each and states (batch, stages, n)."""
        if self.field.rowwise:
            return self(torch.stack(times, 1).flatten(), states.flatten(0, 1)).reshape(states.shape)
        return torch.stack([self(t, states[:, i]) for i, t in enumerate(times)], 1)

    @cached_property
    def linear(self) -> LinearPart:
        """The linear part that the field declares."""
        part = self.field.linear_part
        if part is None:
            raise ValueError(
                "an additive scheme is implicit in the linear part of the field, and this field declares none: give it "
                "an attribute linear_part, a number, a tensor, or a map such as rs.fields.MatrixPart(...), or take "
                "another scheme, such as rs.schemes.tableaux.KVAERNO5."
            )
        return as_linear_part(part)

    def linear_product(self, y: Tensor) -> Tensor:
        """L y, (batch, n), for the linear part L."""
        return self.linear.product(y.reshape(-1, *self.shape)).reshape(y.shape)

    def linear_solve(self, r: Tensor, tau: Tensor) -> Tensor:
        """(I - tau L)^{-1} r, (batch, n), for tau (batch, 1)."""
        factor = tau.reshape(-1, *(1,) * len(self.shape))
        return self.linear.solve(r.reshape(-1, *self.shape), factor).reshape(r.shape)

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


def vector_field_of(field: Any, inference: bool) -> VectorField:
    """The field, wrapped. In inference mode it gets copies of tensors made there."""
    wrapped = as_vector_field(field)
    if not inference:
        return wrapped
    call: Callable[..., Tensor] = without_inference_tensors(Function(lambda y, t: wrapped.call(t, y))).call
    return replace(wrapped, call=lambda t, y: call(y, t))


def probe(flow: Flow, t: Tensor, y: Tensor) -> bool:
    """Whether the field depends on anything that requires a gradient. Raises if two calls give different results."""
    first, second = (flow(t.detach(), y.detach()) for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            "field gave two values for the same time and state: turn off what is drawn at random, such as dropout, "
            "with field.eval()."
        )
    return first.requires_grad


def check_time(flow: Flow, times: Tensor, y: Tensor) -> None:
    """Raises if the field supports only one time for all samples: each sample has its own."""
    if len(y) == 1 or flow.field.autonomous:
        return
    with torch.no_grad():
        # Not at the first time: at t = 0 many time-dependent terms vanish.
        early, late = (times[0, 0] + s * (times[1, 0] - times[0, 0]) for s in (0.38, 0.62))
        odd = torch.arange(len(y), device=y.device) % 2 == 1
        mixed = torch.where(odd, late, early)
        try:
            one, other, each = (flow.field(t.expand(len(y)).to(y.dtype), y) for t in (early, late, mixed))
        except RuntimeError as error:
            raise ValueError(f"{_TIME} It raised: {error}") from error
        if not isinstance(each, Tensor) or each.shape != y.shape or one.shape != y.shape:
            return  # Reported elsewhere.
        expected = torch.where(odd.reshape(-1, *(1,) * (y.dim() - 1)), other, one)
        if not torch.allclose(each, expected, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise ValueError(f"{_TIME} Its values for samples with two times are not those for each of the times.")


_TIME = (
    "field is called with one time for each sample, a tensor t (batch,): reshape it, such as t[:, None], before it "
    "multiplies states (batch, n)."
)
