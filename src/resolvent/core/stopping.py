"""When a solve is finished."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Residuals cannot be driven below the rounding of one evaluation of F; these leave it some room.
_RTOL = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
_ATOL = {torch.float64: 1e-10, torch.float32: 1e-7, torch.float16: 1e-4, torch.bfloat16: 1e-3}
# On a device most solves take so few steps that one step too many costs more than the looks that save it.
_FIRST_LOOKS, _RARE_LOOKS = 8, 4


@dataclass(frozen=True)
class Stopping:
    """Judges each sample alone: it has converged when

        |w - b - tau F(w)| <= atol + rtol * max(|b|, |w|),

    where |.| is the root mean square over the components of one sample (so that a tolerance means the same for a
    vector of two and for an image). It is a norm, never its square, of the equation's own residual.

    The scale includes |w| because rounding alone leaves a residual of that relative size. The linear solve of the
    backward pass, whose right-hand side has no natural unit, is judged by rtol alone.

    Arguments:
        rtol: relative tolerance; None takes 1e-9 in float64, 1e-6 in float32, 2.5e-3 in float16, 2e-2 in bfloat16
            (of the precision F is evaluated in).
        atol: absolute tolerance; None takes 1e-10, 1e-7, 1e-4, 1e-3.
        max_steps: steps after which a sample is given up; None takes the solver's own default.
        patience: steps without the residual falling by at least a thousandth after which a sample counts as stalled;
            the first four are not counted.
        divergence: growth over the first residual at which a sample counts as diverged.
        check_every: steps between two looks at whether all samples are done. A look waits for the device, so None
            looks before every step on the CPU and elsewhere before each of the first few, then before every fourth.
            It changes no result: finished samples do not move. 0 never looks: `max_steps` steps are made whatever
            happens, with no fallback, the solution is the last iterate, and nothing waits for the device, so that a
            pass can be captured as a CUDA graph. A solve like that cannot raise, and asks for on_failure="ignore";
            who converged is in the statuses. The backward solve makes as many steps.
    """

    rtol: float | None = None
    atol: float | None = None
    max_steps: int | None = None
    patience: int = 30
    divergence: float = 1e6
    check_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number, zero or more, got {value!r}.")
        if self.rtol == 0 and self.atol == 0:
            raise ValueError("rtol and atol are both 0: rounding keeps a residual from being exactly zero.")
        for name, least in (("max_steps", 1), ("check_every", 0), ("patience", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}.")
        if self.blind and self.max_steps is None:
            raise ValueError("check_every=0 never looks whether samples are done: say with max_steps how many to make.")
        if not self.divergence > 1:
            raise ValueError(f"divergence is a growth factor and must exceed 1, got {self.divergence!r}.")

    def relative(self, precision: torch.dtype) -> float:
        return _RTOL[precision] if self.rtol is None else self.rtol

    def absolute(self, precision: torch.dtype) -> float:
        return _ATOL[precision] if self.atol is None else self.atol

    @property
    def blind(self) -> bool:
        """Whether it is never looked."""
        return self.check_every == 0

    def for_backward(self) -> "Stopping":
        """What the linear solve of the backward pass inherits."""
        rtol = self.rtol or None
        return Stopping(rtol=rtol, max_steps=self.max_steps, check_every=0) if self.blind else Stopping(rtol=rtol)

    def looks(self, device: torch.device) -> Callable[[int], bool]:
        """Whether to look, before a step of this number, if all samples are done."""
        if self.check_every is not None:
            every = self.check_every
            return lambda step: every > 0 and step % every == 0
        if device.type == "cpu":
            return lambda step: True
        return lambda step: step < _FIRST_LOOKS or step % _RARE_LOOKS == 0
