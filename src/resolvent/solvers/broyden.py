"""Broyden's method with limited memory."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.norms import dot, flat, per_sample, rms
from resolvent.equation.problem import Problem
from resolvent.equation.solver import InverseState
from resolvent.solvers.history import SHORTEN, Best, coefficients, combine, divide, remember, ring
from resolvent.solvers.nonlinear import NonlinearSolver


@dataclass(kw_only=True)
class BroydenState(InverseState):
    """H is the division by 1 - tau c plus the products of the columns of the rings `left` and `right`. A sample that is
    done keeps its columns, whatever the others do."""

    r: Tensor
    best: Best
    left: Tensor
    right: Tensor
    length: Tensor
    count: int = 0

    def inverse(self, problem: Problem, x: Tensor, transposed: bool) -> Tensor:
        left, right = (self.right, self.left) if transposed else (self.left, self.right)
        return problem.precondition(x) + combine(left, coefficients(right, x), x)


@dataclass(frozen=True)
class Broyden(NonlinearSolver):
    """Broyden's good method, w <- w + H r with r = b + tau F(w) - w and an approximation H to (I - tau F')^{-1}

    with a rank-one correction per step: H + (s - H y) s^T H / (s^T H y), s the change of w and y that of -r. H starts
    as the division by 1 - tau c of the field's linear part. Superlinear, one evaluation of F per step. After `memory`
    corrections all are dropped. A sample whose residual grows to ten times its best returns to its best iterate. A
    sample that does not improve for 12 steps drops its corrections and shortens its steps.

    Reference: Kelley, Iterative methods for linear and nonlinear equations, SIAM 1995, chapter 7.
    """

    max_steps = 200
    unrollable = True
    learns = True
    has_inverse = True

    memory: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ValueError(f"memory counts the corrections and must be 1 or more, got {self.memory!r}.")

    def init(self, problem: Problem, w: Tensor) -> BroydenState:
        r = problem.defect(w)
        norm = rms(r)
        empty = ring(self.memory, r)
        return BroydenState(
            w=w,
            norm=norm,
            r=r,
            best=Best.first(w, r, norm),
            left=empty,
            right=empty.clone(),
            length=torch.ones_like(norm),
        )

    def resume(self, problem: Problem, w: Tensor, before: BroydenState) -> BroydenState:
        # Another ring length means that the state is from other settings.
        if before.left.shape[1] != self.memory:
            return self.init(problem, w)
        # Copies, because the rings are changed in place: the earlier solution may be differentiated by them later.
        return replace(self.init(problem, w), left=before.left.clone(), right=before.right.clone(), count=before.count)

    def step(self, problem: Problem, state: BroydenState, running: Tensor) -> BroydenState:
        newton = state.inverse(problem, state.r, transposed=False)
        moved = state.w + per_sample(state.length, state.w) * newton
        w = torch.where(per_sample(running, moved), moved, state.w)
        r = problem.defect(w)
        norm = rms(r)

        lost = running & ~state.best.kept(norm)
        best, misled = state.best.update(w, r, norm)
        misled = misled & running
        left, right = self._correct(problem, state, w - state.w, state.r - r, running)
        forget = misled[:, None, None]
        return BroydenState(
            w=torch.where(per_sample(lost, w), best.w, w),
            norm=torch.where(lost, best.norm, norm),
            r=torch.where(per_sample(lost, r), best.r, r),
            best=best,
            left=torch.where(forget, 0.0, left),
            right=torch.where(forget, 0.0, right),
            length=torch.where(misled, SHORTEN * state.length, torch.where(lost, state.length, 1.0)),
            count=state.count + 1,
        )

    def _correct(
        self, problem: Problem, state: BroydenState, s: Tensor, y: Tensor, running: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The two rings of H, with the correction by s and y added; it is zero for samples that have not moved."""
        slot = state.count % self.memory
        left, right = state.left, state.right
        if slot == 0:
            left, right = (torch.where(running[:, None, None], 0.0, ring) for ring in (left, right))
        hy = problem.precondition(y) + combine(left, coefficients(right, y), y)
        sh = problem.precondition(s) + combine(right, coefficients(left, s), s)
        u = divide(s - hy, per_sample(dot(sh, y), s).expand_as(s))
        if state.count >= self.memory:  # The slot may hold a column of a sample that is done.
            u, sh = (torch.where(running[:, None], flat(x), ring[:, slot]) for x, ring in ((u, left), (sh, right)))
        return remember(left, slot, u), remember(right, slot, sh)
