"""Adjoints that approximate the gradient, and cost less than the linear solve of an exact one."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.adjoint import AttachedAdjoint, ImplicitAdjoint
from resolvent.equation.failure import Policy
from resolvent.equation.linear import LinearProblem
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution
from resolvent.equation.solver import InverseState, Plan
from resolvent.equation.stopping import Stopping


@dataclass(frozen=True)
class NeumannAdjoint(AttachedAdjoint):
    """Approximates A^{-T} g by the first terms of its Neumann series, u_k = u_{k-1} + P (g - A^T u_{k-1}),

    with u_0 = P g and P the division by 1 - tau c of the field's linear part (the identity without one). It neither
    checks nor needs convergence; the error falls like the contraction factor to the power `terms`.
    `rs.analysis.gradient_error` measures it on your problem.

    Reference: Reshniak & Webster, section on fpResNet; Geng et al., On training implicit models, 2021.
    """

    terms: int = 5

    def __post_init__(self) -> None:
        if not isinstance(self.terms, int) or isinstance(self.terms, bool) or self.terms < 0:
            raise ValueError(f"terms counts products with the Jacobian and must be 0 or more, got {self.terms!r}.")

    def solve_linear(self, options: SolveOptions, system: LinearProblem) -> Tensor:
        u = system.precondition(system.b)
        for _ in range(self.terms):
            u = u + system.precondition(system.defect(u))
        return u


@dataclass(frozen=True)
class OneStepAdjoint(AttachedAdjoint):
    """Differentiates only the last fixed-point step, as if A were 1 - tau c. Needs no linear solve.

    Reference: Fung et al., JFB: Jacobian-free backpropagation for implicit networks, 2022.
    """

    def solve_linear(self, options: SolveOptions, system: LinearProblem) -> Tensor:
        return system.precondition(system.b)


@dataclass(frozen=True)
class PhantomAdjoint(AttachedAdjoint):
    """The phantom gradient: that of some damped fixed-point steps, made from the solution on. With u_0 = 0,

        u_k = u_{k-1} + damping P (g - A^T u_{k-1}),      k = 1, ..., steps,

    and P as in `NeumannAdjoint`. All steps are at the solution, so only one evaluation of F is stored, and `steps` - 1
    products with its Jacobian are made. The damping helps where the slopes of tau F are below -1: it converges if they
    are above 1 - 2 / damping. It neither checks nor needs convergence; `rs.analysis.gradient_error` measures the error.

    Arguments:
        steps: their number. One step with a damping of 1 is `OneStepAdjoint`.
        damping: between 0 and 1.

    Reference: Geng et al., On training implicit models, 2021.
    """

    steps: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise ValueError(f"steps counts fixed-point steps and must be 1 or more, got {self.steps!r}.")
        if not isinstance(self.damping, int | float) or not 0 < self.damping <= 1:
            raise ValueError(f"damping must be above 0 and at most 1, got {self.damping!r}.")

    def solve_linear(self, options: SolveOptions, system: LinearProblem) -> Tensor:
        u = self.damping * system.precondition(system.b)
        for _ in range(self.steps - 1):
            u = u + self.damping * system.precondition(system.defect(u))
        return u


@dataclass(frozen=True)
class ShineAdjoint(AttachedAdjoint):
    """Starts the backward solve from what the forward solve has learned: u = H^T g, where H is the approximation to
    A^{-1} that `rs.Broyden` has built.

    The residual g - A^T u is measured. Where it is at most `rtol` times g, which costs one product with the Jacobian,
    u is the result; the other samples are solved for from there. A small `rtol` gives the exact gradient, from a better
    start. The corrections of the forward solve are kept in memory until the backward pass. They are quotients of small
    differences: their rounding, which may depend on the size of the batch, changes u within `rtol`.

    Arguments:
        rtol: for the residual of the linear system.
        solver: for the samples that need more; None lets the forward solver choose.
        on_failure: "raise", "warn", "ignore" or "mask"; None takes that of the forward solve.
        callback: called with the `Solution` of every backward solve.

    Reference: Ramzi et al., SHINE: sharing the inverse estimate from the forward pass for bi-level optimization and
    implicit models, 2022.
    """

    needs_inverse = True

    rtol: float = 0.1
    solver: Plan | None = None
    on_failure: Policy | None = None
    callback: Callable[[Solution], None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rtol, int | float) or not 0 < self.rtol < 1:
            raise ValueError(f"rtol must be between 0 and 1, got {self.rtol!r}.")
        self._exact()  # Checks the others.

    def _exact(self) -> ImplicitAdjoint:
        return ImplicitAdjoint(self.solver, 1, Stopping(rtol=self.rtol), self.on_failure, self.callback)

    def solve_linear(self, options: SolveOptions, system: LinearProblem) -> Tensor:
        state = system.linearization.state
        assert isinstance(state, InverseState)

        def guess(g: Tensor) -> Tensor:
            u = state.inverse(system, g, system.transposed)
            return torch.where(u.isfinite(), u, 0.0)

        return self._exact().solve_from(options, system, guess)
