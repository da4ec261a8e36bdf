"""Stopping rules: a tolerance, or a fixed number of steps."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from resolvent.equation.parts import Components, PartTest

# Default tolerances, somewhat above the rounding of one evaluation of F, which residuals cannot go below.
_RTOL = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
_ATOL = {torch.float64: 1e-10, torch.float32: 1e-7, torch.float16: 1e-4, torch.bfloat16: 1e-3}
# On a GPU: check before each of the first steps, where a needless step costs more than a check, then before every
# fourth.
_FIRST_CHECKS, _RARE_CHECKS = 8, 4
# A tightened rtol is at least this many roundings: a residual cannot fall below the rounding of its terms.
_ROUNDING = 4.0


class StoppingRule(ABC):
    """Decides when a sample has converged, and when a solve ends.

    A sample has converged when |w - b - tau F(w)| <= atol + rtol * max(|b|, |w|), where |.| is a root mean square. See
    `Stopping`.
    """

    rtol: float | None
    atol: float | Tensor | None
    patience: int = 30
    divergence: float = 1e6

    fixed: bool
    """Whether convergence is never checked while the solve runs."""

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The most steps of one solver; None takes the solver's own default."""

    @abstractmethod
    def checks(self, device: torch.device) -> Callable[[int], bool]:
        """A function of the step number: whether to check before that step if all samples are done. A check waits for
        the device."""

    @abstractmethod
    def for_backward(self) -> "StoppingRule":
        """The rule for the linear solve of the backward pass."""

    def for_contraction(self) -> "StoppingRule":
        """The rule for samples that contract quickly, where it may be wider."""
        return self

    def relative(self, precision: torch.dtype) -> float:
        return _RTOL[precision] if self.rtol is None else self.rtol

    def absolute(self, precision: torch.dtype) -> float:
        """The absolute tolerance of the residual's norm; the root mean square of `atol` if that is a tensor."""
        if isinstance(self.atol, Tensor):
            return float(self.atol.double().square().mean().sqrt())
        return _ATOL[precision] if self.atol is None else self.atol

    def parts(self, b: Tensor, precision: torch.dtype) -> PartTest | None:
        """The test of the components of a sample of b (batch, *shape); None if they share one tolerance."""
        if not isinstance(self.atol, Tensor):
            return None
        shape = tuple(b.shape[1:])
        # Stacked stages or layers, (batch, rows, *shape), have the tolerances of one.
        if self.atol.dim() > len(shape) or shape[len(shape) - self.atol.dim() :] != tuple(self.atol.shape):
            raise ValueError(
                f"atol as a tensor must have the shape of a sample, {shape}, got {tuple(self.atol.shape)}."
            )
        return Components(self.atol.to(b), self.relative(precision))

    def tightened(self, amplification: float, precision: torch.dtype) -> "StoppingRule":
        """The rule for an equation whose error is later multiplied by `amplification`: tighter by that factor."""
        if amplification <= 1:
            return self
        return (_tightened if isinstance(self.atol, Tensor) else _tightened_once)(self, amplification, precision)


def _tightened(rule: StoppingRule, amplification: float, precision: torch.dtype) -> StoppingRule:
    rtol = rule.relative(precision)
    atol = rule.atol if isinstance(rule.atol, Tensor) else rule.absolute(precision)
    floor = min(rtol, _ROUNDING * torch.finfo(precision).eps)
    tighter = {"rtol": max(rtol / amplification, floor), "atol": atol / amplification}
    return dataclasses.replace(rule, **tighter)  # type: ignore[type-var]


# Every layer of a pass asks for the same rule.
_tightened_once = lru_cache(maxsize=64)(_tightened)


@dataclass(frozen=True)
class Stopping(StoppingRule):
    """Tests each sample alone. It has converged when

        |w - b - tau F(w)| <= atol + rtol * max(|b|, |w|),

    where |.| is the root mean square over the components of one sample, so that a tolerance means the same for a vector
    of two and for an image. It is the norm, not its square, of the residual of the equation itself.

    A root mean square hides small components. If `atol` is a tensor, every component i must also satisfy

        |w - b - tau F(w)|_i <= atol_i + rtol * max(|b_i|, |w_i|),

    which takes one more evaluation of F with most solvers, where the norm is within the tolerance.

    The scale includes |w| because rounding alone leaves a residual of that relative size. An iterate many times larger
    than the start of the solve must also have a small error (see docs/did-not-converge.md). The linear solve of the
    backward pass uses rtol alone, since its right-hand side has no natural unit, and its backward error where rounding
    limits the accuracy.

    Arguments:
        rtol: relative tolerance; None takes 1e-9 in float64, 1e-6 in float32, 2.5e-3 in float16, 2e-2 in bfloat16
            (the precision in which F is evaluated).
        atol: absolute tolerance, a number, or a tensor like a sample; None takes 1e-10, 1e-7, 1e-4, 1e-3.
        max_steps: the most steps of a sample; None takes the solver's own default.
        patience: steps without the residual falling by at least a thousandth after which a sample counts as stalled;
            the first four are not counted.
        divergence: growth over the first residual at which a sample counts as diverged.
        check_every: steps between two checks whether all samples are done. A check waits for the device. None checks
            before every step on the CPU, and elsewhere before each of the first few, then before every fourth. It
            changes no result: finished samples do not move.
    """

    rtol: float | None = None
    atol: float | Tensor | None = None
    max_steps: int | None = None
    patience: int = 30
    divergence: float = 1e6
    check_every: int | None = None

    fixed = False

    def __post_init__(self) -> None:
        if isinstance(self.atol, Tensor):
            object.__setattr__(self, "atol", self.atol.detach())
        _check_tolerances(self.rtol, self.atol)
        for name in ("max_steps", "check_every", "patience"):
            value = getattr(self, name)
            if value is not None and not _is_count(value):
                advice = " For a fixed number of steps take rs.FixedSteps(n)." if name == "check_every" else ""
                raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}.{advice}")
        if not self.divergence > 1:
            raise ValueError(f"divergence is a growth factor and must exceed 1, got {self.divergence!r}.")

    @property
    def limit(self) -> int | None:
        return self.max_steps

    def checks(self, device: torch.device) -> Callable[[int], bool]:
        every = self.check_every
        if every is not None:
            return lambda step: step % every == 0
        if device.type == "cpu":
            return lambda step: True
        return lambda step: step < _FIRST_CHECKS or step % _RARE_CHECKS == 0

    def for_backward(self) -> "Stopping":
        return _with_rtol(self.rtol or None)


@dataclass(frozen=True)
class FixedSteps(StoppingRule):
    """Makes a fixed number of steps and never waits for the device, so that a pass can be captured as a CUDA graph or
    exported.

    The solution is the last iterate, with no fallback. Such a solve cannot report failure, so it accepts only
    on_failure="ignore"; the statuses of the solution say which samples converged. The backward solve makes as many
    steps.

    Arguments:
        steps: the number of steps.
        rtol, atol: the tolerances for the statuses, see `Stopping`.
    """

    steps: int
    rtol: float | None = None
    atol: float | None = None

    fixed = True

    def __post_init__(self) -> None:
        if isinstance(self.atol, Tensor):
            raise ValueError("rs.FixedSteps(...) takes a number as atol: it does not test single components.")
        _check_tolerances(self.rtol, self.atol)
        if not _is_count(self.steps):
            raise ValueError(f"steps must be a whole number, 1 or more, got {self.steps!r}.")

    @property
    def limit(self) -> int:
        return self.steps

    def checks(self, device: torch.device) -> Callable[[int], bool]:
        return lambda step: False

    def for_backward(self) -> "FixedSteps":
        return FixedSteps(self.steps, rtol=self.rtol or None)


@lru_cache(maxsize=64)
def _with_rtol(rtol: float | None) -> Stopping:
    return Stopping(rtol=rtol)


def _check_tolerances(rtol: float | None, atol: float | Tensor | None) -> None:
    if isinstance(atol, Tensor):
        if not atol.is_floating_point() or atol.numel() == 0 or not bool((atol.isfinite() & (atol >= 0)).all()):
            raise ValueError(f"atol as a tensor must have finite numbers, zero or more, got {atol!r}.")
        atol = float(atol.min())
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number, zero or more, got {value!r}.")
    if rtol == 0 and atol == 0:
        raise ValueError("rtol and atol are both 0: rounding keeps a residual from being exactly zero.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
