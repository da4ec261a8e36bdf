"""Implicit stages: a simplified Newton iteration whose matrix serves all stages, and many steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.samples import Samples
from resolvent.integrate.systems import System

_MOST_ITERATIONS = 10
# A Jacobian is made anew after a step whose iterations contracted by less than this.
SLOW = 1e-3


@dataclass
class Stage:
    """The outcome of the iterations of one stage.

    Attributes:
        increment: (batch, n), h times the slope of the stage.
        converged: (batch,).
        rate: (batch,), the contraction of the iterations; zero where a single one was enough.
    """

    increment: Tensor
    converged: Tensor
    rate: Tensor


@dataclass(frozen=True)
class SimplifiedNewton:
    """Solves z = tau F(t, b + z) for the stages of a step, tau = h gamma, by

        z <- z + (I - tau J)^{-1} (tau F(t, b + z) - z),      J of an earlier state.

    The unknown is the increment z, not the state b + z: its rounding is relative to its own size. The iteration of a
    sample ends when its contraction shows that the error is below the tolerance, in the weighted norm.

    Attributes:
        flow, tolerance: the field, and the norm.
        accuracy: the largest error of a stage, in the weighted norm.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.8.
    """

    flow: Flow
    tolerance: Tolerance
    accuracy: float

    def solve(
        self, t: Tensor, b: Tensor, guess: Tensor, tau: Tensor, system: System, samples: Samples, wanted: Tensor
    ) -> Stage:
        """Solves one stage.

        Arguments:
            t: (batch,), its time.
            b: (batch, n), its explicit part.
            guess: (batch, n), of z.
            tau: (batch, 1).
            system: I - tau J.
            samples: of which the states give the norm, and the last contraction is read and written.
            wanted: (batch,), the samples to solve for.
        """
        z, running, converged = guess, wanted, torch.zeros_like(wanted)
        scale = self.tolerance.scale(samples.y)
        size = rate = torch.zeros_like(samples.y[:, 0])
        for iteration in range(_MOST_ITERATIONS):
            update = system.solve(tau * self.flow(t, b + z) - z)
            size, last = self.tolerance.norm(update, scale), size
            if iteration == 0:
                # Without a rate yet, the last one is trusted.
                reached = samples.contraction * size <= self.accuracy
                lost = ~size.isfinite()
            else:
                now = size / last
                rate = torch.where(running, torch.maximum(rate, now), rate)
                factor = now / (1 - now)
                samples.contraction = torch.where(running & (now < 1), factor.clamp(min=1e-16), samples.contraction)
                reached = (now < 1) & (factor * size <= self.accuracy)
                remaining = now ** (_MOST_ITERATIONS - 1 - iteration) * factor * size
                lost = ~(now < 1) | (remaining > self.accuracy)
            reached = (reached | (size == 0)) & size.isfinite()
            z = torch.where(running[:, None], z + update, z)
            converged = converged | (running & reached)
            running = running & ~reached & ~lost
            if not bool(running.any()):
                break
        return Stage(z, converged, rate)
