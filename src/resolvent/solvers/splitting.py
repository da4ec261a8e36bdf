"""Operator splitting for the equilibria of monotone networks: forward-backward and Peaceman-Rachford."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem
from resolvent.equation.solver import State
from resolvent.equation.torch_func import any_true
from resolvent.solvers.nonlinear import NonlinearSolver


class Split:
    """The linear part of z = max(0, W z + offset), shared by all samples.

    The equation is 0 = A z - offset + g with A = I - W and g in G(z), where the resolvent of G is max(0, .) for every
    step. It is no record of rows: a state that holds it may be restricted to some samples.

    Arguments:
        W: (n, n), without a graph.
        step: of the resolvents; or a function of m and L that gives it, where m is the least eigenvalue of the
            symmetric part of A, and L its norm.
        factorize: whether `resolvent` will be called.
    """

    def __init__(self, W: Tensor, step: float | Callable[[Tensor, Tensor], Tensor], factorize: bool) -> None:
        identity = torch.eye(len(W), dtype=W.dtype, device=W.device)
        A = identity - W
        self.W = W
        self.step: float | Tensor
        if callable(step):
            self.step = step(torch.linalg.eigvalsh((A + A.mT) / 2)[0], torch.linalg.matrix_norm(A, 2))
        else:
            self.step = step
        self._factors = torch.linalg.lu_factor(identity + self.step * A) if factorize else None

    def resolvent(self, right: Tensor) -> Tensor:
        """(I + step A)^{-1} applied to each row."""
        assert self._factors is not None
        return torch.linalg.lu_solve(*self._factors, right.mT).mT


@dataclass(kw_only=True)
class SplitState(State):
    """An iterate w of a splitting method.

    Attributes:
        split: the linear part.
        offset: (batch, n).
        image: W w + offset.
        u: (batch, n), whose resolvent w is; for Peaceman-Rachford splitting.
    """

    split: Split
    offset: Tensor
    image: Tensor
    u: Tensor


class Splitting(NonlinearSolver):
    """A method for z = max(0, W z + offset), with b = 0 and tau = 1.

    F must say how it is split, by a method `split(*inputs)` that returns W, (n, n), and the offset, (batch, n), as that
    of `rs.fields.Monotone` does.
    """

    max_steps = 2000
    patience = 500

    @abstractmethod
    def prepare(self, W: Tensor) -> Split:
        """What all steps share."""

    @abstractmethod
    def advance(self, state: SplitState) -> tuple[Tensor, Tensor]:
        """The next w and u."""

    def init(self, problem: NonlinearProblem, w: Tensor) -> SplitState:
        W, offset = self._parts(problem)
        split = self.prepare(W.detach().to(w.dtype))
        return self._at(problem, w, w, split, offset.detach().to(w.dtype))

    def step(self, problem: NonlinearProblem, state: SplitState, running: Tensor) -> SplitState:
        w, u = self.advance(state)
        mask = per_sample(running, w)
        w, u = torch.where(mask, w, state.w), torch.where(mask, u, state.u)
        return self._at(problem, w, u, state.split, state.offset)

    def _at(self, problem: NonlinearProblem, w: Tensor, u: Tensor, split: Split, offset: Tensor) -> SplitState:
        problem.work.evaluations += 1
        image = w @ split.W.mT + offset
        return SplitState(w=w, norm=rms(torch.relu(image) - w), split=split, offset=offset, image=image, u=u)

    def _parts(self, problem: NonlinearProblem) -> tuple[Tensor, Tensor]:
        name, function = type(self).__name__, problem.function
        if function.split is None:
            raise ValueError(
                f"{name} needs a function that says how it is split, as in rs.Equilibrium(rs.fields.Monotone(...)): "
                "take rs.Anderson() for others."
            )
        if isinstance(problem.tau, Tensor) or problem.tau != 1 or any_true(problem.b != 0):
            raise ValueError(f"{name} solves z = F(z), with b = 0 and tau = 1, as in rs.Equilibrium.")
        return function.split(*function.conditions)


@dataclass(frozen=True)
class ForwardBackward(Splitting):
    """Forward-backward splitting for monotone networks, z = max(0, W z + offset):

        z <- max(0, z - a ((I - W) z - offset)),

    an explicit step of I - W, and the resolvent max(0, .). It converges if a is below 2 m / L^2, with the margin m of
    the network and the norm L of I - W. Each step is as cheap as that of the fixed point, which has a = 1.

    Arguments:
        step_size: a; None takes m / L^2 of the current weights.

    Reference: Winston & Kolter, Monotone operator equilibrium networks, 2020, algorithm 1.
    """

    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_step(self.step_size)

    def prepare(self, W: Tensor) -> Split:
        return Split(W, self.step_size or (lambda m, L: m / L.square()), factorize=False)

    def advance(self, state: SplitState) -> tuple[Tensor, Tensor]:
        w = torch.relu(state.w + state.split.step * (state.image - state.w))
        return w, w


@dataclass(frozen=True)
class PeacemanRachford(Splitting):
    """Peaceman-Rachford splitting for monotone networks, z = max(0, W z + offset). With z = max(0, u),

        v = 2 z - u,      y = (I + a (I - W))^{-1} (v + a offset),      u <- 2 y - v,

    the resolvents of both parts in turn, each reflected. It converges for every a > 0, usually in far fewer steps than
    `ForwardBackward`; each takes a solve with a matrix that is factorised once per pass.

    Arguments:
        step_size: a; None takes 1 / sqrt(m L) of the current weights, with m and L as in `ForwardBackward`.

    Reference: Winston & Kolter, Monotone operator equilibrium networks, 2020, algorithm 2.
    """

    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_step(self.step_size)

    def prepare(self, W: Tensor) -> Split:
        return Split(W, self.step_size or (lambda m, L: (m * L).rsqrt()), factorize=True)

    def advance(self, state: SplitState) -> tuple[Tensor, Tensor]:
        v = 2 * state.w - state.u
        y = state.split.resolvent(v + state.split.step * state.offset)
        u = 2 * y - v
        return torch.relu(u), u


def _check_step(step: object) -> None:
    if step is not None and not (isinstance(step, int | float) and math.isfinite(step) and step > 0):
        raise ValueError(f"step_size must be a positive number, or None, got {step!r}.")
