"""Which samples of a fixed point go on: those above the tolerance that contract quickly enough.

As a rule all samples of a batch go on until all of them have converged. The smallest and the largest residual show
both, so that most steps need no mask.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from resolvent.equation.norms import extremes


class Limits(NamedTuple):
    """How long a sample goes on: while its residual exceeds the tolerance, and is below `lead` times its first residual
    times `rate` for every step.

    Attributes:
        unit: a residual at the tolerance, divided by the tolerance.
        rate, lead: see `Attempt`.
        before: what the largest residual may have been before the first guess, in units of the tolerance.
        moving: whether the tolerance changes from step to step.
        steps: a sample is slow if it is expected to need more than these in all.
        keeps_slow: whether slow samples go on.
        looks: after which steps slow samples are looked for.
    """

    unit: float
    rate: float
    lead: float
    before: float
    moving: bool
    steps: float
    keeps_slow: bool
    looks: Collection[int]


class Pace:
    """The samples that go on after each step.

    Arguments:
        limits: how long they go on.
        norm: (batch,), the first residuals.
        excess: (batch,), the same divided by the tolerance.
        chosen: mask (batch,) of the samples that may go on; None means all.
        steps_first: whether samples make a step even if they are within the tolerance.

    Attributes:
        mask: the samples that go on; None if all of them do.
        count: how many go on, if it is known.
        steps: that each sample has made.
        most, before: the largest excess after the last step and before it, in units of the tolerance.
        slow: mask (batch,) of the samples that were found to be slow; None if none was.
        all_slow: whether all samples are known to be slow.
    """

    def __init__(
        self, limits: Limits, norm: Tensor, excess: Tensor, chosen: Tensor | None, steps_first: bool = False
    ) -> None:
        self._first, self._unit, self._rate, self._pace = norm, limits.unit, limits.rate, limits.lead
        self.mask: Tensor | None = None
        self.count: int | None = len(norm)
        self.steps: int | Tensor = 0
        least, most = extremes(excess)
        self.before, self.most = limits.before, most / self._unit
        self.slow: Tensor | None = None
        self.all_slow = False
        self._limits, self._made = limits, 0
        self._excess = excess
        self._smallest: float | None = least / self._unit
        # Beside a tolerance that has changed, the first residuals are others.
        self._least = 0.0 if limits.moving else least
        enough = 0.0 if steps_first else self._unit
        if chosen is not None or not least > enough:
            above = excess > enough
            self._keep(above if chosen is None else chosen & above, read=True)

    @property
    def done(self) -> bool:
        """Whether no sample goes on."""
        return self.count == 0

    @property
    def converged(self) -> bool:
        """Whether all samples are known to be within the tolerance."""
        return self.most <= 1

    @property
    def few(self) -> bool:
        """Whether at most half of the samples go on."""
        return self.count is not None and 2 * self.count <= len(self._first)

    @property
    def looks_next(self) -> bool:
        """Whether slow samples are looked for after the next step."""
        return self._looks_after(self._made + 1)

    def residuals(self) -> tuple[float, float]:
        """The largest residual before the last step and after it, in units of the tolerance."""
        return self.before, self.most

    def update(self, norm: Tensor, excess: Tensor, read: bool) -> None:
        """After a step: the new residuals. They are looked at if `read`, which waits for the device."""
        self.steps = self.steps + (1 if self.mask is None else self.mask.int())
        self._pace *= self._rate
        self._made += 1
        if not read:
            self._find_slow(excess, None)
        else:
            least, most = extremes(excess)
            self.before, self.most = self.most, most / self._unit
            self._find_slow(excess, least / self._unit)
            if self.mask is None and self._all_go_on(least, most):
                return
            if self.converged:
                self.count = 0
                return
        going = (excess > self._unit) & (norm < self._pace * self._first)
        if not (self._limits.keeps_slow or self.slow is None):
            going = going & ~self.slow
        self._keep(going if self.mask is None else self.mask & going, read)

    def forget_slow(self, alpha: Tensor | None) -> None:
        """Forgets that relaxed samples, those of an alpha below 1, were slow: from now on they take other steps."""
        if alpha is None or self.slow is None:
            return
        slow = self.slow & (alpha == 1)
        self.all_slow, self.slow = False, slow if bool(slow.any()) else None

    def _all_go_on(self, least: float, most: float) -> bool:
        """Whether no sample is done, and none is too slow, by the extremes of their excess."""
        quick = most < self._pace * self._least and (self._limits.keeps_slow or self.slow is None)
        return quick and least > self._unit

    def _find_slow(self, excess: Tensor, smallest: float | None) -> None:
        """Adds to `slow` the samples that, at the rate of their last step, need more steps than they should.

        `smallest` is the least excess, in units of the tolerance, if it is known.
        """
        before, self._excess, least, self._smallest = self._excess, excess, self._smallest, smallest
        if self.all_slow or not self._looks_after(self._made):
            return
        # More than n further ones: log(now) > n log(before / now).
        power = 1 + 1 / max(1, self._limits.steps - self._made)
        if least is not None and smallest is not None:
            if least >= self.most**power:
                return
            self.all_slow = self.before < smallest**power
        slow = before / self._unit < (excess / self._unit) ** power
        if self.slow is not None:
            self.slow = self.slow | slow
        elif smallest is None or bool(slow.any()):
            self.slow = slow

    def _looks_after(self, step: int) -> bool:
        return self._limits.steps < math.inf and step in self._limits.looks

    def _keep(self, going: Tensor, read: bool) -> None:
        self.count = int(going.count_nonzero()) if read else None
        self.mask = None if self.count == len(going) else going
