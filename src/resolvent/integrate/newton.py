"""Implicit stages: a simplified Newton iteration with one matrix for all stages and many steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.samples import Samples
from resolvent.integrate.systems import System

_MOST_ITERATIONS = 10
# The Jacobian is renewed after a step whose iterations contracted more slowly than this rate.
SLOW = 1e-3


@dataclass
class Stage:
    """The result of the iterations of one stage.

    Attributes:
        increment: (batch, n), h times the slope of the stage.
        converged: (batch,).
        rate: (batch,), the contraction rate of the iterations; zero if one was enough.
    """

    increment: Tensor
    converged: Tensor
    rate: Tensor


@dataclass(frozen=True)
class SimplifiedNewton:
    """Solves z = tau F(t, b + z) for the stages of a step, tau = h gamma, by

        z <- z + (I - tau J)^{-1} (tau F(t, b + z) - z),      J of an earlier state.

    The unknown is the increment z, not the state b + z, so that its rounding is relative to its own size. The iteration
    of a sample ends when the error estimated from its contraction is below the tolerance, in the weighted norm.

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
            samples: their states define the norm; their last contraction is read and written.
            wanted: mask (batch,) of the samples to solve.
        """
        z, running, converged = guess, wanted, torch.zeros_like(wanted)
        scale = self.tolerance.scale(samples.y)
        contraction = samples.contraction
        size = rate = torch.zeros_like(contraction)
        # Values that are not finite fail all comparisons, and end in `lost`.
        for iteration in range(_MOST_ITERATIONS):
            update = system.solve(torch.addcmul(-z, tau, self.flow(t, b + z)))
            size, last = self.tolerance.norm(update, scale), size
            if iteration == 0:  # There is no rate yet: the last one is used.
                reached = contraction * size <= self.accuracy
                lost = torch.zeros_like(reached)
            else:
                now = size / last
                factor = now / (1 - now)
                error = factor * size
                shrinks = now < 1
                reached = shrinks & (error <= self.accuracy)
                lost = ~(shrinks & (error * now ** (_MOST_ITERATIONS - 1 - iteration) <= self.accuracy))
                rate = torch.where(running, torch.maximum(rate, now), rate)
                contraction = torch.where(running & shrinks, factor.clamp(min=1e-16), contraction)
            z = torch.where(running[:, None], z + update, z)
            converged = converged | (running & reached)
            running = running & ~(reached | lost)
            if not bool(running.any()):
                break
        samples.contraction = contraction
        return Stage(z, converged, rate)
