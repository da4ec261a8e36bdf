"""Anderson acceleration."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.core.problem import Problem, per_sample, rms
from resolvent.core.solver import State
from resolvent.solvers.history import coefficients, combine, remember, ring
from resolvent.solvers.nonlinear import NonlinearSolver
from resolvent.solvers.safeguard import SHORTEN, Best


@dataclass(kw_only=True)
class AndersonState(State):
    f: Tensor
    best: Best
    changes_w: Tensor
    changes_f: Tensor
    gram: Tensor
    valid: Tensor
    mixing: Tensor
    count: int = 0


@dataclass(frozen=True)
class Anderson(NonlinearSolver):
    """Anderson acceleration of the fixed point, f(w) = g(w) - w with the map g of `Picard`:

        w <- w + beta f - (dW + beta dF) gamma,   gamma = argmin |f - dF gamma|,

    where the columns of dW and dF are the last changes of w and f. The default for many unknowns: on a linear
    problem it is GMRES, and it needs one evaluation of F a step and no derivatives. The least-squares problem is
    regularised; a sample whose residual grows tenfold over its best goes back there, and one that finds nothing
    better for long starts its window anew with a tenth of the mixing.

    Arguments:
        memory: columns in the window.
        mixing: beta, in (0, 1].
        regularization: added to the diagonal of the normal equations, relative to their trace; None takes ten times
            the machine precision.

    Reference: Walker & Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 49, 2011.
    """

    max_steps = 200
    unrollable = True

    memory: int = 5
    mixing: float = 1.0
    regularization: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ValueError(f"memory counts the columns of the window and must be 1 or more, got {self.memory!r}.")
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing must lie in (0, 1], got {self.mixing!r}.")
        if self.regularization is not None and not self.regularization >= 0:
            raise ValueError(f"regularization must be 0 or more, got {self.regularization!r}.")

    def init(self, problem: Problem, w: Tensor) -> AndersonState:
        r = problem.defect(w)
        norm, f = rms(r), problem.precondition(r)
        window = ring(self.memory, f)
        return AndersonState(
            w=w,
            norm=norm,
            f=f,
            best=Best.first(w, f, norm),
            changes_w=window,
            changes_f=window.clone(),
            gram=torch.zeros_like(window[:, :, :1]).repeat(1, 1, self.memory),
            valid=torch.zeros_like(window[:, :, 0], dtype=torch.bool),
            mixing=torch.full_like(norm, self.mixing),
        )

    def step(self, problem: Problem, state: AndersonState, running: Tensor) -> AndersonState:
        beta = per_sample(state.mixing, state.w)
        gamma = self._weights(state)
        correction = combine(state.changes_w, gamma, state.w) + beta * combine(state.changes_f, gamma, state.w)
        moved = state.w + beta * state.f - correction
        w = torch.where(per_sample(running, moved), moved, state.w)
        r = problem.defect(w)
        norm, f = rms(r), problem.precondition(r)

        best, lost, misled = state.best.update(w, f, norm, running)
        shown = per_sample(norm.isfinite(), w)  # 0 * inf is not 0, so what is not finite must not enter the window.
        slot = state.count % self.memory
        changes_w = remember(state.changes_w, slot, torch.where(shown, w - state.w, 0.0))
        changes_f = remember(state.changes_f, slot, torch.where(shown, f - state.f, 0.0))
        occupied = torch.arange(self.memory, device=w.device) == slot
        return AndersonState(
            w=torch.where(per_sample(lost, w), best.w, w),
            norm=torch.where(lost, best.norm, norm),
            f=torch.where(per_sample(lost, f), best.r, f),
            best=best,
            changes_w=changes_w,
            changes_f=changes_f,
            gram=self._gram(state.gram, changes_f, slot),
            valid=(state.valid | occupied) & ~misled[:, None],
            mixing=torch.where(misled, SHORTEN * state.mixing, state.mixing),
            count=state.count + 1,
        )

    def _gram(self, gram: Tensor, changes_f: Tensor, slot: int) -> Tensor:
        """Only the products with the newest column are new."""
        column = coefficients(changes_f, changes_f[:, slot])
        gram = gram.clone()
        gram[:, slot, :] = column
        gram[:, :, slot] = column
        return gram

    def _weights(self, state: AndersonState) -> Tensor:
        """gamma, (batch, memory); zero for columns that a sample does not have."""
        valid = state.valid
        pairs = valid[:, :, None] & valid[:, None, :]
        gram = torch.where(pairs, state.gram, 0.0)
        trace = gram.diagonal(dim1=1, dim2=2).sum(1)
        small = 10 * torch.finfo(gram.dtype).eps if self.regularization is None else self.regularization
        # Absent columns get a one on the diagonal, and a right-hand side of zero.
        diagonal = torch.where(valid, (small * trace)[:, None], 1.0)
        products = torch.where(valid, coefficients(state.changes_f, state.f), 0.0)
        gamma, info = torch.linalg.solve_ex(gram + torch.diag_embed(diagonal), products)
        usable = (info == 0)[:, None] & gamma.isfinite()
        return torch.where(usable & valid, gamma, 0.0)
