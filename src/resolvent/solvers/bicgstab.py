"""The stabilised bi-conjugate gradient method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.norms import dot, per_sample, rms
from resolvent.equation.problem import Problem
from resolvent.equation.solver import State
from resolvent.solvers.history import divide
from resolvent.solvers.linear import Preconditioned, as_linear


@dataclass(kw_only=True)
class BiCGStabState(State):
    r: Tensor
    shadow: Tensor
    p: Tensor
    rho: Tensor


@dataclass(frozen=True)
class BiCGStab(Preconditioned):
    """BiCGStab: two products with A per step, and storage of seven vectors for any number of steps.

    Choose it over `GMRES` if the stored Krylov space is too large. It can break down, and reports that.

    Arguments:
        preconditioner: a linear function M(r) ~ A^{-1} r, transposed by the solver if needed; None takes the division
            by 1 - tau c if the field declares its linear part.

    Reference: van der Vorst, Bi-CGSTAB, SIAM J. Sci. Stat. Comput. 13, 1992.
    """

    max_steps = 200
    estimates = True

    def init(self, problem: Problem, w: Tensor) -> BiCGStabState:
        r = as_linear(problem, self).defect(w)
        return BiCGStabState(w=w, norm=rms(r), r=r, shadow=r, p=r, rho=dot(r, r))

    def step(self, problem: Problem, state: BiCGStabState, running: Tensor) -> BiCGStabState:
        system = as_linear(problem, self)
        precondition = system.orient(self.preconditioner)

        def spread(values: Tensor) -> Tensor:
            return per_sample(values, state.w)

        p = precondition(state.p)
        ap = system.apply(p)
        along = dot(state.shadow, ap)
        alpha = divide(state.rho, along)
        half = state.r - spread(alpha) * ap
        s = precondition(half)
        a_s = system.apply(s)
        omega = divide(dot(a_s, half), dot(a_s, a_s))
        moved = state.w + spread(alpha) * p + spread(omega) * s
        r = half - spread(omega) * a_s
        rho = dot(state.shadow, r)
        beta = divide(rho, state.rho) * divide(alpha, omega)
        norm = rms(r)
        stuck = (along == 0) | (rho == 0) | (omega == 0)
        return BiCGStabState(
            w=torch.where(spread(running), moved, state.w),
            norm=torch.where(running, norm, state.norm),
            broken=running & stuck & (norm > 0),
            r=r,
            shadow=state.shadow,
            p=r + spread(beta) * (state.p - spread(omega) * ap),
            rho=rho,
        )
