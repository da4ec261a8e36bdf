"""Restarted GMRES."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.norms import length, per_sample, products
from resolvent.equation.problem import Problem
from resolvent.equation.solver import State
from resolvent.solvers.history import coefficients, combine, divide, remember, ring
from resolvent.solvers.linear import Preconditioned, as_linear


@dataclass(kw_only=True)
class GMRESState(State):
    base: Tensor
    basis: Tensor
    triangle: Tensor
    rotations: Tensor
    start: Tensor
    count: int = 0


@dataclass(frozen=True)
class GMRES(Preconditioned):
    """Restarted GMRES: minimises the residual over the Krylov space of A, one product with A per step.

    The paper's choice for the backward pass. It is matrix-free, does not need a contracting field, and every sample has
    its own Krylov space. The preconditioner acts from the right, so the residual is the true one; the basis is
    orthogonalised twice. Without restart it is exact after n steps.

    Arguments:
        preconditioner: a linear function M(r) ~ A^{-1} r, transposed by the solver if needed; None takes the division
            by 1 - tau c if the field declares its linear part.
        restart: the largest size of the Krylov space, and the number of stored vectors.

    Reference: Saad & Schultz, GMRES, SIAM J. Sci. Stat. Comput. 7, 1986.
    """

    max_steps = 200
    estimates = True

    restart: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.restart, int) or self.restart < 1:
            raise ValueError(f"restart is the size of the Krylov space and must be 1 or more, got {self.restart!r}.")

    def init(self, problem: Problem, w: Tensor) -> GMRESState:
        r = as_linear(problem, self).defect(w)
        size = min(self.restart, problem.size)
        start = length(r)
        basis = remember(ring(size + 1, r), 0, divide(r, per_sample(start, r).expand_as(r)))
        square = torch.zeros_like(basis[:, :, :1]).repeat(1, 1, size + 1)
        identity = square + torch.eye(size + 1, dtype=w.dtype, device=w.device)
        return GMRESState(
            w=w,
            norm=start / problem.size**0.5,
            base=w,
            basis=basis,
            triangle=square,
            rotations=identity,
            start=start,
        )

    def step(self, problem: Problem, state: GMRESState, running: Tensor) -> GMRESState:
        if state.count == state.triangle.shape[1] - 1:
            state = self.init(problem, state.w)
        system, k = as_linear(problem, self), state.count
        precondition = system.orient(self.preconditioner)

        direction = state.basis[:, k].reshape(state.w.shape)
        image = system.apply(precondition(direction))
        column, rest = _orthogonalize(state.basis, image)
        height = length(rest)
        basis = remember(state.basis, k + 1, divide(rest, per_sample(height, rest).expand_as(rest)))

        # The product of the earlier rotations brings the column to triangular form, except its last entry.
        column = products(state.rotations, column)
        pivot = torch.hypot(column[:, k], height)
        # A direction that adds nothing to the Krylov space does not change the residual.
        cosine, sine = divide(column[:, k], pivot), torch.where(pivot == 0, 1.0, divide(height, pivot))
        triangle = state.triangle.clone()
        triangle[:, :k, k] = column[:, :k]
        triangle[:, k, k] = torch.where(pivot == 0, 1.0, pivot)
        rotations = state.rotations.clone()
        rotations[:, k] = cosine[:, None] * state.rotations[:, k] + sine[:, None] * state.rotations[:, k + 1]
        rotations[:, k + 1] = cosine[:, None] * state.rotations[:, k + 1] - sine[:, None] * state.rotations[:, k]

        target = (state.start[:, None] * rotations[:, : k + 1, 0])[:, :, None]
        weights = torch.linalg.solve_triangular(triangle[:, : k + 1, : k + 1], target, upper=True).squeeze(2)
        moved = state.base + precondition(combine(basis[:, : k + 1], weights, state.w))
        residual = state.start * rotations[:, k + 1, 0].abs() / problem.size**0.5
        return GMRESState(
            w=torch.where(per_sample(running, moved), moved, state.w),
            norm=torch.where(running, residual, state.norm),
            broken=running & (pivot == 0),
            base=state.base,
            basis=basis,
            triangle=triangle,
            rotations=rotations,
            start=state.start,
            count=k + 1,
        )


def _orthogonalize(basis: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficients of `vector` in the orthonormal basis, and the remainder. Two passes are enough."""
    first = coefficients(basis, vector)
    rest = vector - combine(basis, first, vector)
    second = coefficients(basis, rest)
    return first + second, rest - combine(basis, second, vector)
