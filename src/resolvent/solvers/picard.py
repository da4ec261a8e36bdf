"""Fixed-point iteration, and its linear form, the Neumann series."""

from dataclasses import dataclass

from torch import Tensor

from resolvent.equation.norms import rms, select
from resolvent.equation.problem import Problem
from resolvent.equation.solver import State
from resolvent.solvers.linear import LinearSolver, as_linear
from resolvent.solvers.nonlinear import NonlinearSolver


@dataclass(kw_only=True)
class PicardState(State):
    r: Tensor


@dataclass(frozen=True)
class Picard(NonlinearSolver):
    """The damped fixed point w <- w + damping (g(w) - w), g(w) = b + tau F(w).

    If the field declares its linear part, F(w) = c w + N(w), g is the linearly implicit
    g(w) = (b + tau N(w)) / (1 - tau c) instead, which contracts however stiff c < 0 is. Choose it for fields that are
    known to contract: its steps are the cheapest. It converges linearly, with the factor tau Lip(F), or
    tau Lip(N) / (1 - tau c).

    Reference: Reshniak & Webster, section on fpResNet.
    """

    max_steps = 500
    unrollable = True
    last_evaluated = True

    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie in (0, 1], got {self.damping!r}.")

    def init(self, problem: Problem, w: Tensor) -> PicardState:
        r = problem.defect(w)
        return PicardState(w=w, norm=rms(r), r=r)

    def step(self, problem: Problem, state: PicardState, running: Tensor) -> PicardState:
        moved = state.w + self.damping * problem.precondition(state.r)
        w = select(running, moved, state.w)
        r = problem.defect(w)
        return PicardState(w=w, norm=rms(r), r=r)


@dataclass(frozen=True)
class Neumann(LinearSolver):
    """The Neumann series u = sum_k (tau F'(w)^T)^k g: the fixed point u <- g + tau F'(w)^T u of the backward pass.

    It is preconditioned by the field's linear part, like `Picard`, and converges if the forward fixed point does.

    Reference: Reshniak & Webster, section on fpResNet.
    """

    max_steps = 500
    last_evaluated = True

    def init(self, problem: Problem, w: Tensor) -> PicardState:
        return Picard().init(as_linear(problem, self), w)

    def step(self, problem: Problem, state: PicardState, running: Tensor) -> PicardState:
        return Picard().step(problem, state, running)
