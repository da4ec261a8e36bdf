"""How the resolvents of a step are solved, and how accurately."""

import dataclasses

import torch
from torch import Tensor

from resolvent.core.adjoint import Adjoint
from resolvent.core.solver import Solver
from resolvent.core.stopping import Stopping

# A residual cannot be asked to fall below the rounding of its terms, however much the step enlarges it.
_ROUNDING = 4.0


@dataclasses.dataclass(frozen=True)
class Solving:
    """The arguments of `resolve` that all solves of a pass have in common."""

    solver: Solver | None = None
    stopping: Stopping | None = None
    adjoint: Adjoint | None = None
    on_failure: str = "raise"

    def stopping_for(self, b: Tensor, amplification: float) -> Stopping:
        """The tolerance for a stage whose error the step multiplies by `amplification`: that much tighter.

        What the user asks for then holds for the equation of the step, not only for the one inside of it.
        """
        stopping = self.stopping or Stopping()
        if amplification <= 1:
            return stopping
        precision = torch.get_autocast_dtype(b.device.type) if torch.is_autocast_enabled(b.device.type) else b.dtype
        rtol, atol = stopping.relative(precision), stopping.absolute(precision)
        floor = min(rtol, _ROUNDING * torch.finfo(precision).eps)
        return dataclasses.replace(stopping, rtol=max(rtol / amplification, floor), atol=atol / amplification)
