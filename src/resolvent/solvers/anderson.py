"""Anderson acceleration."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.norms import flat, per_sample, rms, select
from resolvent.equation.problem import Problem
from resolvent.equation.solver import State
from resolvent.solvers.history import SHORTEN, Best, coefficients, combine, remember, ring
from resolvent.solvers.nonlinear import NonlinearSolver


@dataclass
class Window:
    """The last columns of dF, `changes`, and of dW + beta dF, `moves`.

    Attributes:
        moves, changes: (batch, held, n). They grow up to the size of the window, which most solves do not reach.
        gram: (batch, memory, memory), the inner products of the changes.
        valid: (batch, memory), mask of the columns of a sample.
    """

    moves: Tensor
    changes: Tensor
    gram: Tensor
    valid: Tensor


@dataclass
class Trial:
    """The last step. The next step adds it to the window; most solves end before that.

    Attributes:
        w, f: its start.
        new_w, new_f, new_norm: its end, kept or not.
        kept: mask (batch,) of the samples that stay there.
    """

    w: Tensor
    f: Tensor
    new_w: Tensor
    new_f: Tensor
    new_norm: Tensor
    kept: Tensor


@dataclass(kw_only=True)
class AndersonState(State):
    """A sample whose last trial is not kept is at its best iterate."""

    f: Tensor
    best: Best
    mixing: Tensor
    window: Window | None = None
    last: Trial | None = None
    count: int = 0


@dataclass(frozen=True)
class Anderson(NonlinearSolver):
    """Anderson acceleration of the fixed point, f(w) = g(w) - w with the map g of `Picard`:

        w <- w + beta f - (dW + beta dF) gamma,   gamma = argmin |f - dF gamma|,

    where the columns of dW and dF are the last changes of w and f. The default for many unknowns: on a linear problem
    it is equivalent to GMRES, and it needs one evaluation of F per step and no derivatives. The least-squares problem
    is regularised. A sample whose residual grows to ten times its best returns to its best iterate. A sample that does
    not improve for 12 steps clears its window and continues with a tenth of the mixing.

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
        mixing = torch.full_like(norm, self.mixing)
        return AndersonState(w=w, norm=norm, f=f, best=Best.first(w, f, norm), mixing=mixing)

    def step(self, problem: Problem, state: AndersonState, running: Tensor) -> AndersonState:
        start_w, start_f, best, mixing, window = state.w, state.f, state.best, state.mixing, state.window
        if state.last is not None:
            trial = state.last
            best, misled = best.update(trial.new_w, trial.new_f, trial.new_norm)
            start_f = select(trial.kept, trial.new_f, best.r)
            window = self._extend(window, trial, state.count - 1, mixing, misled)
            mixing = torch.where(misled, SHORTEN * mixing, mixing)
        moved = torch.addcmul(start_w, per_sample(mixing, start_w), start_f)
        if window is not None:
            held = min(state.count, self.memory)
            moved = moved - combine(window.moves[:, :held], self._weights(window, start_f, held), moved)
        w = select(running, moved, start_w)
        r = problem.defect(w)
        norm, f = rms(r), problem.precondition(r)
        kept = best.kept(norm)
        return AndersonState(
            w=select(kept, w, best.w),
            norm=torch.where(kept, norm, best.norm),
            f=f,
            best=best,
            mixing=mixing,
            window=window,
            last=Trial(start_w, start_f, w, f, norm, kept),
            count=state.count + 1,
        )

    def _extend(self, window: Window | None, trial: Trial, count: int, mixing: Tensor, misled: Tensor) -> Window:
        """The window with its oldest columns replaced by those of a trial."""
        # 0 * inf is NaN, so values that are not finite must not enter.
        shown = trial.new_norm.isfinite()
        change = select(shown, trial.new_f - trial.f, torch.zeros_like(trial.f))
        move = select(shown, trial.new_w - trial.w, torch.zeros_like(trial.w))
        move = torch.addcmul(move, per_sample(mixing, move), change)
        window = self._empty(change) if window is None else window
        slot, held = count % self.memory, min(count + 1, self.memory)
        changes, gram = remember(window.changes, slot, change), window.gram.clone()
        column = coefficients(changes[:, :held], changes[:, slot])
        gram[:, slot, :held] = column
        gram[:, :held, slot] = column
        occupied = torch.arange(self.memory, device=move.device) == slot
        valid = (window.valid | occupied) & ~misled[:, None]
        return Window(remember(window.moves, slot, move), changes, gram, valid)

    def _empty(self, like: Tensor) -> Window:
        columns = ring(0, like)
        row = flat(like)[:, :1].expand(-1, self.memory)
        gram = torch.zeros_like(row)[:, None].repeat(1, self.memory, 1)
        return Window(columns, columns, gram, torch.zeros_like(row, dtype=torch.bool))

    def _weights(self, window: Window, f: Tensor, held: int) -> Tensor:
        """gamma, (batch, held); zero for columns that a sample does not have."""
        valid = window.valid[:, :held]
        pairs = valid[:, :, None] & valid[:, None, :]
        gram = torch.where(pairs, window.gram[:, :held, :held], 0.0)
        trace = gram.diagonal(dim1=1, dim2=2).sum(1)
        small = 10 * torch.finfo(gram.dtype).eps if self.regularization is None else self.regularization
        # Missing columns get 1 on the diagonal and 0 on the right-hand side.
        diagonal = torch.where(valid, (small * trace)[:, None], 1.0)
        products = torch.where(valid, coefficients(window.changes[:, :held], f), 0.0)
        if held == 1:
            gamma = products / (gram[:, 0] + diagonal)
        else:
            gamma, info = torch.linalg.solve_ex(gram + torch.diag_embed(diagonal), products)
            valid = valid & (info == 0)[:, None]
        return torch.where(valid & gamma.isfinite(), gamma, 0.0)
