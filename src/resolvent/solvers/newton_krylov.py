"""Newton's method with an iterative, inexact linear solve, for many unknowns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem, Problem
from resolvent.equation.solver import Plan, State
from resolvent.solvers.newton import SUFFICIENT
from resolvent.solvers.nonlinear import InexactSolver

# Eisenstat and Walker's choice 2: forcing = 0.9 (|r| / |r_before|)^2, between 1e-3 and 0.9, and at least 0.9 times the
# square of the previous forcing while that is above 0.1.
_FIRST_FORCING, _MOST_FORCING, _LEAST_FORCING, _GAMMA = 0.1, 0.9, 1e-3, 0.9


@dataclass(kw_only=True)
class NewtonKrylovState(State):
    r: Tensor
    direction: Tensor
    length: Tensor
    forcing: Tensor


@dataclass(frozen=True)
class NewtonKrylov(InexactSolver):
    """Inexact Newton: w <- w + s d with |r - (I - tau F'(w)) d| <= eta |r|, r = b + tau F(w) - w, matrix-free.

    For many unknowns if the fixed point does not contract. The forcing eta follows Eisenstat and Walker: early steps
    are cheap, and late ones converge superlinearly. The step length s is halved until the residual falls.

    Arguments:
        linear: the solver for the corrections.
        inner_steps: its most steps per correction.

    Reference: Eisenstat & Walker, Choosing the forcing terms in an inexact Newton method, 1996.
    """

    max_steps = 100
    monotone = True

    def linear_plan(self, problem: Problem) -> Plan:
        return self.linear

    def init(self, problem: NonlinearProblem, w: Tensor) -> NewtonKrylovState:
        r = problem.defect(w)
        norm = rms(r)
        return NewtonKrylovState(
            w=w,
            norm=norm,
            r=r,
            direction=torch.zeros_like(r),
            length=torch.zeros_like(norm),  # Zero: there is no direction yet.
            forcing=torch.full_like(norm, _FIRST_FORCING),
        )

    def step(self, problem: NonlinearProblem, state: NewtonKrylovState, running: Tensor) -> NewtonKrylovState:
        needed = running & (state.length == 0)
        direction = self._direction(problem, state, needed)
        length = torch.where(needed, 1.0, state.length)
        moved = state.w + per_sample(length, state.w) * direction
        trial = torch.where(per_sample(running, moved), moved, state.w)
        r = problem.defect(trial)
        norm = rms(r)
        lower = norm < (1 - SUFFICIENT * length) * state.norm
        move = per_sample(lower, trial)
        return NewtonKrylovState(
            w=torch.where(move, trial, state.w),
            norm=torch.where(lower, norm, state.norm),
            r=torch.where(move, r, state.r),
            direction=direction,
            length=torch.where(lower, 0.0, 0.5 * length),
            forcing=torch.where(lower, self._forcing(norm / state.norm, state.forcing), state.forcing),
        )

    def _direction(self, problem: NonlinearProblem, state: NewtonKrylovState, needed: Tensor) -> Tensor:
        """The corrections, new for the samples where `needed`; the others keep theirs."""
        system = LinearProblem(state.r, Linearization(problem, state.w), transposed=False)
        found = self.correction(system, needed, state.forcing)
        return torch.where(per_sample(needed, found), found, state.direction)

    @staticmethod
    def _forcing(ratio: Tensor, before: Tensor) -> Tensor:
        forcing = _GAMMA * ratio**2
        memory = _GAMMA * before**2
        forcing = torch.where(memory > 0.1, torch.maximum(forcing, memory), forcing)
        return forcing.clamp(_LEAST_FORCING, _MOST_FORCING)
