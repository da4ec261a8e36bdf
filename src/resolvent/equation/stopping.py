"""When a solve ends: at a tolerance, or after a fixed number of steps."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Residuals cannot be driven below the rounding of one evaluation of F; these leave it some room.
_RTOL = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
_ATOL = {torch.float64: 1e-10, torch.float32: 1e-7, torch.float16: 1e-4, torch.bfloat16: 1e-3}
# On a device most solves take so few steps that one step too many costs more than the checks that save it.
_FIRST_CHECKS, _RARE_CHECKS = 8, 4
# A residual cannot be asked to fall below the rounding of its terms, however much a step enlarges it.
_ROUNDING = 4.0


class StoppingRule(ABC):
    """Says when a sample has converged, and when a solve ends.

    A sample has converged when |w - b - tau F(w)| <= atol + rtol * max(|b|, |w|), where |.| is a root mean square. See
    `Stopping`.
    """

    rtol: float | None
    atol: float | None
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
        """Whether to check, before a step of this number, if all samples are done. A check waits for the device."""

    @abstractmethod
    def for_backward(self) -> "StoppingRule":
        """What the linear solve of the backward pass inherits."""

    def relative(self, precision: torch.dtype) -> float:
        return _RTOL[precision] if self.rtol is None else self.rtol

    def absolute(self, precision: torch.dtype) -> float:
        return _ATOL[precision] if self.atol is None else self.atol

    def tightened(self, amplification: float, precision: torch.dtype) -> "StoppingRule":
        """The tolerance for an equation whose error is multiplied by `amplification` later: that much tighter."""
        if amplification <= 1:
            return self
        rtol, atol = self.relative(precision), self.absolute(precision)
        floor = min(rtol, _ROUNDING * torch.finfo(precision).eps)
        tighter = {"rtol": max(rtol / amplification, floor), "atol": atol / amplification}
        return dataclasses.replace(self, **tighter)  # type: ignore[type-var]


@dataclass(frozen=True)
class Stopping(StoppingRule):
    """Judges each sample alone: it has converged when

        |w - b - tau F(w)| <= atol + rtol * max(|b|, |w|),

    where |.| is the root mean square over the components of one sample (so that a tolerance means the same for a
    vector of two and for an image). It is a norm, never its square, of the equation's own residual.

    The scale includes |w| because rounding alone leaves a residual of that relative size. An iterate that has run away
    to many times the size of everything the solve began with does not converge by its size: its error has to be small,
    too (see docs/did-not-converge.md). The linear solve of the backward pass, whose right-hand side has no natural
    unit, is judged by rtol alone, and by its backward error where rounding does not allow more.

    Arguments:
        rtol: relative tolerance; None takes 1e-9 in float64, 1e-6 in float32, 2.5e-3 in float16, 2e-2 in bfloat16
            (of the precision F is evaluated in).
        atol: absolute tolerance; None takes 1e-10, 1e-7, 1e-4, 1e-3.
        max_steps: steps after which a sample is given up; None takes the solver's own default.
        patience: steps without the residual falling by at least a thousandth after which a sample counts as stalled;
            the first four are not counted.
        divergence: growth over the first residual at which a sample counts as diverged.
        check_every: steps between two checks whether all samples are done. A check waits for the device, so None
            checks before every step on the CPU and elsewhere before each of the first few, then before every fourth.
            It changes no result: finished samples do not move.
    """

    rtol: float | None = None
    atol: float | None = None
    max_steps: int | None = None
    patience: int = 30
    divergence: float = 1e6
    check_every: int | None = None

    fixed = False

    def __post_init__(self) -> None:
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
        return Stopping(rtol=self.rtol or None)


@dataclass(frozen=True)
class FixedSteps(StoppingRule):
    """Makes a fixed number of steps, whatever happens: nothing waits for the device, so that a pass can be captured as
    a CUDA graph or exported.

    The solution is the last iterate, with no fallback. Such a solve cannot report failure, so it accepts only
    on_failure="ignore"; the statuses of the solution say which samples converged. The backward solve makes as many
    steps.

    Arguments:
        steps: how many.
        rtol, atol: the tolerances that the statuses are judged by, see `Stopping`.
    """

    steps: int
    rtol: float | None = None
    atol: float | None = None

    fixed = True

    def __post_init__(self) -> None:
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


def _check_tolerances(rtol: float | None, atol: float | None) -> None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number, zero or more, got {value!r}.")
    if rtol == 0 and atol == 0:
        raise ValueError("rtol and atol are both 0: rounding keeps a residual from being exactly zero.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
